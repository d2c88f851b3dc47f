// One matrix product, computed by the calling thread alone.
#pragma once

#include <cstdint>

namespace qkv::inline v0::kernels {

// C = op(A) op(B), or C += if accumulate. Row-major; op(A) is [m, k], op(B) is [k, n]. lda, ldb,
// ldc are the row strides of the matrices as they lie in memory (A is [k, m] if transpose_a, B is
// [n, k] if transpose_b).
template <class T>
struct Gemm {
  bool transpose_a = false, transpose_b = false;
  std::int64_t m = 0, n = 0, k = 0;
  const T* a = nullptr;
  std::int64_t lda = 0;
  const T* b = nullptr;
  std::int64_t ldb = 0;
  T* c = nullptr;
  std::int64_t ldc = 0;
  bool accumulate = false;
};

// fp32 by oneDNN, or the reference (sums in double) where that is asked for; fp64 by the reference.
// The bits depend on the problem alone. Thread-safe. Accuracy fp32: k 2^-24 sum |a||b|.
void gemm(const Gemm<float>& problem);
void gemm(const Gemm<double>& problem);

}  // namespace qkv::inline v0::kernels
