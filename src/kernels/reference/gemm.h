// The matrix product by its definition.
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

namespace reference {

// Every element is one sum in double, in the order of k; by the calling thread.
void gemm(const Gemm<float>& problem);
void gemm(const Gemm<double>& problem);

}  // namespace reference

}  // namespace qkv::inline v0::kernels
