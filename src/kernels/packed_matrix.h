// The right-hand side of a product, packed once and shared by all threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/product.h"

namespace qkv::inline v0::kernels {

// op(B) [k, n]. fp32: a packed copy, in memory of the current MemoryScope's kind. fp64, or where
// the reference is asked for: B itself is used and must outlive this. Immutable, so thread-safe;
// the constructor packs in parallel.
template <class T>
class PackedMatrix {
 public:
  // B is [k, n] with row stride ldb; or [n, k] if transpose. k, n >= 1.
  PackedMatrix(const T* b, std::int64_t ldb, bool transpose, std::int64_t k, std::int64_t n);

  std::int64_t k() const { return k_; }
  std::int64_t n() const { return n_; }

  // C = A op(B) + bias for m rows, by the calling thread. C is dense. bias: [n], or null. A row's
  // bits depend on that row, B and the bias alone. Accuracy: k 2^-24 sum |a||b|.
  void multiply(std::int64_t m, const T* a, std::int64_t lda, const T* bias, T* c) const;
  // The same product in parallel, cut into blocks of rows and columns: for few rows.
  void multiply_parallel(std::int64_t m, const T* a, std::int64_t lda, const T* bias, T* c) const;

 private:
  // Columns first .. first + count of the product; first is where a panel begins.
  void multiply_columns(std::int64_t m, const T* a, std::int64_t lda, const T* bias, T* c,
                        std::int64_t first, std::int64_t count) const;

  const T* b_;
  std::int64_t ldb_, k_, n_;
  bool transpose_;
  const ProductKernels* kernels_ = nullptr;  // null: B itself is used
  std::shared_ptr<float> memory_;
};

// C = A op(B) + bias as above, in parallel and without a packed copy: for few rows. Bits are the
// same.
template <class T>
struct Product {
  std::int64_t m, n, k;
  const T* a;
  std::int64_t lda;
  const T* b;
  std::int64_t ldb;
  bool transpose;
  const T* bias;
  T* c;
};
void multiply(const Product<float>& problem);

// dw [n, k] = dy^T x, or += if accumulate, for dy [t, n] and x [t, k]: a product over the tokens.
// Parallel over blocks of dw; each is a sum over steps of tokens in order, so bits depend on the
// shapes alone.
template <class T>
struct WeightGradient {
  std::int64_t t, n, k;
  const T* dy;
  std::int64_t ldy;
  const T* x;
  std::int64_t ldx;
  T* dw;  // row stride k
  bool accumulate;
};
void weight_gradient(const WeightGradient<float>& problem);
void weight_gradient(const WeightGradient<double>& problem);

}  // namespace qkv::inline v0::kernels
