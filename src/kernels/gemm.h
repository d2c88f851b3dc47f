// Matrix products, computed by the calling thread alone.
#pragma once

#include <cstddef>
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

// By the reference, whose sums are in double. For checks, and for fp64. Thread-safe.
void gemm(const Gemm<float>& problem);
void gemm(const Gemm<double>& problem);

// Products with a packed right-hand side B [k, n], over oneDNN, in the layout that it likes best;
// the layout depends on k and n alone, so that any number of rows can be multiplied with it.
// Thread-safe. Accuracy: k 2^-24 sum |a||b|.
std::size_t packed_bytes(std::int64_t k, std::int64_t n);

// Columns that can be packed apart from the others, into one place after the other; n where B must
// be packed as a whole.
std::int64_t packed_columns(std::int64_t k, std::int64_t n);

// B is [k, n] with row stride ldb, or [n, k] if transpose; `packed` is aligned to 64 bytes.
void pack(const float* b, std::int64_t ldb, bool transpose, std::int64_t k, std::int64_t n,
          void* packed);

// C = A B + bias, or C += A B if accumulate; C is dense. k, n >= 1; any m: it is cut into blocks of
// 256, 128,
// ..., 1 rows, so that few kinds of products exist whatever the lengths of texts are. With AVX-512
// a row of C depends on its row of A and B alone, bit for bit; without it, also on m.
struct PackedProduct {
  std::int64_t m = 0, n = 0, k = 0;
  const float* a = nullptr;
  std::int64_t lda = 0;
  const void* packed = nullptr;
  const float* bias = nullptr;  // [n]; null: none
  float* c = nullptr;
  bool accumulate = false;
};
void multiply_packed(const PackedProduct& problem);

}  // namespace qkv::inline v0::kernels
