#include "kernels/packed_matrix.h"

#include <algorithm>
#include <array>
#include <type_traits>

#include "base/memory.h"
#include "base/thread_pool.h"
#include "kernels/reference/gemm.h"

namespace qkv::inline v0::kernels {
namespace {

// Columns that one work item packs, and steps of those that one computes: whole panels.
constexpr std::int64_t kPackColumns = 64;
// Few rows are cut into blocks of so many, for a panel is packed once in each, and of a quarter of
// the columns, for the rows are turned once in each.
constexpr std::int64_t kBlockRows = 256;
std::int64_t column_width(std::int64_t n) {
  return std::clamp<std::int64_t>((n / 4 + kPackColumns - 1) / kPackColumns * kPackColumns, 128,
                                  384);
}
// thread_scratch slot of this file.
constexpr int kScratchSlot = 1;

std::shared_ptr<float> allocate(std::size_t bytes) {
  const MemoryKind kind = current_memory_kind();
  return {static_cast<float*>(allocate_bytes(bytes, kind)),
          [bytes, kind](float* block) { free_bytes(block, bytes, kind); }};
}

float* scratch(std::int64_t floats) {
  return thread_scratch_of<float>(static_cast<std::size_t>(floats), kScratchSlot);
}

}  // namespace

template <class T>
PackedMatrix<T>::PackedMatrix(const T* b, std::int64_t ldb, bool transpose, std::int64_t k,
                              std::int64_t n)
    : b_(b), ldb_(ldb), k_(k), n_(n), transpose_(transpose) {
  if constexpr (std::is_same_v<T, float>) {
    kernels_ = product_kernels();
    if (kernels_ == nullptr) return;
    const std::int64_t columns = (n + kernels_->panel - 1) / kernels_->panel * kernels_->panel;
    memory_ = allocate(static_cast<std::size_t>(columns * k) * sizeof(float));
    parallel_chunks(n, kPackColumns, [&](std::int64_t begin, std::int64_t end) {
      kernels_->pack({.b = transpose ? b + begin * ldb : b + begin,
                      .ldb = ldb,
                      .transpose = transpose,
                      .k = k,
                      .n = end - begin,
                      .packed = memory_.get() + begin * k});
    });
  }
}

template <class T>
void PackedMatrix<T>::multiply(std::int64_t m, const T* a, std::int64_t lda, const T* bias,
                               T* c) const {
  multiply_columns(m, a, lda, bias, c, 0, n_);
}

template <class T>
void PackedMatrix<T>::multiply_parallel(std::int64_t m, const T* a, std::int64_t lda, const T* bias,
                                        T* c) const {
  const std::int64_t width = column_width(n_), across = (n_ + width - 1) / width,
                     down = (m + kBlockRows - 1) / kBlockRows;
  parallel_for(across * down, [&](std::int64_t i) {
    const std::int64_t row = i / across * kBlockRows, column = i % across * width;
    multiply_columns(std::min(kBlockRows, m - row), a + row * lda, lda, bias, c + row * n_, column,
                     std::min(width, n_ - column));
  });
}

template <class T>
void PackedMatrix<T>::multiply_columns(std::int64_t m, const T* a, std::int64_t lda, const T* bias,
                                       T* c, std::int64_t first, std::int64_t count) const {
  if constexpr (std::is_same_v<T, float>) {
    if (kernels_ != nullptr)
      return kernels_->multiply({.m = m,
                                 .n = count,
                                 .k = k_,
                                 .a = a,
                                 .lda = lda,
                                 .packed = memory_.get() + first * k_,
                                 .bias = bias != nullptr ? bias + first : nullptr,
                                 .c = c + first,
                                 .ldc = n_,
                                 .scratch = scratch(kernels_->multiply_scratch)});
  }
  reference::gemm(Gemm<T>{.transpose_b = transpose_,
                          .m = m,
                          .n = count,
                          .k = k_,
                          .a = a,
                          .lda = lda,
                          .b = transpose_ ? b_ + first * ldb_ : b_ + first,
                          .ldb = ldb_,
                          .c = c + first,
                          .ldc = n_});
  for (std::int64_t i = 0; bias != nullptr && i < m; ++i)
    for (std::int64_t j = first; j < first + count; ++j) c[i * n_ + j] += bias[j];
}

template class PackedMatrix<float>;
template class PackedMatrix<double>;

void multiply(const Product<float>& p) {
  const ProductKernels* kernels = product_kernels();
  if (kernels == nullptr) {
    const PackedMatrix<float> matrix(p.b, p.ldb, p.transpose, p.k, p.n);
    return matrix.multiply(p.m, p.a, p.lda, p.bias, p.c);
  }
  const std::int64_t width = column_width(p.n), across = (p.n + width - 1) / width,
                     down = (p.m + kBlockRows - 1) / kBlockRows;
  parallel_for(across * down, [&](std::int64_t i) {
    const std::int64_t row = i / across * kBlockRows, column = i % across * width;
    kernels->multiply({.m = std::min(kBlockRows, p.m - row),
                       .n = std::min(width, p.n - column),
                       .k = p.k,
                       .a = p.a + row * p.lda,
                       .lda = p.lda,
                       .b = p.transpose ? p.b + column * p.ldb : p.b + column,
                       .ldb = p.ldb,
                       .transpose = p.transpose,
                       .bias = p.bias != nullptr ? p.bias + column : nullptr,
                       .c = p.c + row * p.n + column,
                       .ldc = p.n,
                       .scratch = scratch(kernels->multiply_scratch)});
  });
}

namespace {

// A block of dw that one work item computes.
struct Block {
  std::int64_t rows, columns;
  std::int64_t across(std::int64_t k) const { return (k + columns - 1) / columns; }
  std::int64_t count(std::int64_t n, std::int64_t k) const {
    return (n + rows - 1) / rows * across(k);
  }
  // What the threads take for the whole, in multiply-adds a token: each block packs its columns of
  // x and gathers its columns of dy, at about what 8 and 6 multiply-adds an element take.
  std::int64_t cost(std::int64_t n, std::int64_t k, int threads) const {
    const std::int64_t rounds = (count(n, k) + threads - 1) / threads;
    return rounds * (rows * columns + 8 * columns + 6 * rows);
  }
};

// The blocks that the threads at hand are done with first; no bits depend on the choice. One that
// is no larger than this stays in a second-level cache.
Block gradient_block(std::int64_t n, std::int64_t k) {
  constexpr std::int64_t kStep = 32, kMost = 128 << 10;
  constexpr std::array<std::int64_t, 11> kParts = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48};
  const auto part = [](std::int64_t extent, std::int64_t parts) {
    return ((extent + parts - 1) / parts + kStep - 1) / kStep * kStep;
  };
  const int threads = num_threads();
  Block best = {kStep, kStep};
  std::int64_t least = best.cost(n, k, threads);
  for (const std::int64_t down : kParts) {
    for (const std::int64_t across : kParts) {
      const Block block = {part(n, down), part(k, across)};
      if (block.rows > kGradientRows || block.rows * block.columns > kMost) continue;
      const std::int64_t cost = block.cost(n, k, threads);
      if (cost < least) {
        least = cost;
        best = block;
      }
    }
  }
  return best;
}

template <class T>
void reference_gradient(const WeightGradient<T>& p, std::int64_t begin, std::int64_t end) {
  reference::gemm(Gemm<T>{.transpose_a = true,
                          .m = end - begin,
                          .n = p.k,
                          .k = p.t,
                          .a = p.dy + begin,
                          .lda = p.ldy,
                          .b = p.x,
                          .ldb = p.ldx,
                          .c = p.dw + begin * p.k,
                          .ldc = p.k,
                          .accumulate = p.accumulate});
}

template <class T>
void reference_gradient(const WeightGradient<T>& p) {
  constexpr std::int64_t kRows = 32;
  parallel_chunks(p.n, kRows,
                  [&](std::int64_t begin, std::int64_t end) { reference_gradient(p, begin, end); });
}

}  // namespace

void weight_gradient(const WeightGradient<double>& p) { reference_gradient(p); }

void weight_gradient(const WeightGradient<float>& p) {
  const ProductKernels* kernels = product_kernels();
  if (p.t == 0 || kernels == nullptr) return reference_gradient(p);
  const Block block = gradient_block(p.n, p.k);
  const std::int64_t across = block.across(p.k);
  parallel_for(block.count(p.n, p.k), [&](std::int64_t i) {
    const std::int64_t row = i / across * block.rows, column = i % across * block.columns;
    kernels->gradient({.t = p.t,
                       .n = std::min(block.rows, p.n - row),
                       .k = std::min(block.columns, p.k - column),
                       .dy = p.dy + row,
                       .ldy = p.ldy,
                       .x = p.x + column,
                       .ldx = p.ldx,
                       .dw = p.dw + row * p.k + column,
                       .ldw = p.k,
                       .accumulate = p.accumulate,
                       .scratch = scratch(kernels->gradient_scratch)});
  });
}

}  // namespace qkv::inline v0::kernels
