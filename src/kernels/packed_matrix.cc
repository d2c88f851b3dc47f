#include "kernels/packed_matrix.h"

#include <algorithm>
#include <string_view>
#include <type_traits>

#include "base/memory.h"
#include "base/thread_pool.h"
#include "kernels/gemm.h"
#include "kernels/registry.h"
#include "kernels/vector.h"

namespace qkv::inline v0::kernels {
namespace {

// Tokens of one step of a weight gradient, and of the last one at least (it is filled up with
// zeros).
constexpr std::int64_t kTokens = 512, kFewestTokens = 32;
// Columns of x from which on a step is halved.
constexpr std::int64_t kWide = 1024;
// thread_scratch slot of this file; 0 is oneDNN's.
constexpr int kScratchSlot = 1;

bool reference_only() {
  const char* forced = forced_implementation();
  return forced != nullptr && std::string_view(forced) == kReference;
}

std::shared_ptr<void> allocate(std::size_t bytes) {
  const MemoryKind kind = current_memory_kind();
  return {allocate_bytes(bytes, kind),
          [bytes, kind](void* block) { free_bytes(block, bytes, kind); }};
}

}  // namespace

template <class T>
PackedMatrix<T>::PackedMatrix(const T* b, std::int64_t ldb, bool transpose, std::int64_t k,
                              std::int64_t n)
    : b_(b), ldb_(ldb), k_(k), n_(n), transpose_(transpose) {
  if constexpr (std::is_same_v<T, float>) {
    if (reference_only()) return;
    bytes_ = packed_bytes(k, n);
    memory_ = allocate(bytes_);
    const std::int64_t columns = packed_columns(k, n);
    const std::size_t part_bytes = packed_bytes(k, columns);
    parallel_chunks(n, columns, [&](std::int64_t begin, std::int64_t end) {
      char* to = static_cast<char*>(memory_.get()) +
                 static_cast<std::size_t>(begin / columns) * part_bytes;
      pack(transpose ? b + begin * ldb : b + begin, ldb, transpose, k, end - begin, to);
    });
  }
}

template <class T>
void PackedMatrix<T>::multiply(std::int64_t m, const T* a, std::int64_t lda, const T* bias,
                               T* c) const {
  if constexpr (std::is_same_v<T, float>) {
    if (memory_ != nullptr)
      return multiply_packed({.m = m,
                              .n = n_,
                              .k = k_,
                              .a = a,
                              .lda = lda,
                              .packed = memory_.get(),
                              .bias = bias,
                              .c = c});
  }
  gemm(Gemm<T>{.transpose_b = transpose_,
               .m = m,
               .n = n_,
               .k = k_,
               .a = a,
               .lda = lda,
               .b = b_,
               .ldb = ldb_,
               .c = c,
               .ldc = n_});
  for (std::int64_t i = 0; bias != nullptr && i < m; ++i)
    for (std::int64_t j = 0; j < n_; ++j) c[i * n_ + j] += bias[j];
}

template class PackedMatrix<float>;
template class PackedMatrix<double>;

namespace {

// Consecutive tokens: `count` of them, computed as `filled` >= count.
struct TokenChunk {
  std::int64_t first, count, filled;
};

// Steps of kTokens (fewer where x is wide: a step of x should stay in the cache), then of half, a
// quarter, ... as often as they fit: few kinds of products whatever t is.
std::vector<TokenChunk> token_chunks(std::int64_t t, std::int64_t k) {
  std::vector<TokenChunk> chunks;
  std::int64_t size = k > kWide ? kTokens / 2 : kTokens;
  for (std::int64_t first = 0; first < t; first += chunks.back().count) {
    while (size > t - first && size > kFewestTokens) size /= 2;
    chunks.push_back({first, std::min(size, t - first), size});
  }
  return chunks;
}

// x of every chunk, packed.
class PackedTokens {
 public:
  PackedTokens(const WeightGradient<float>& p, const std::vector<TokenChunk>& chunks) {
    std::size_t bytes = 0;
    for (const TokenChunk& chunk : chunks) {
      starts_.push_back(bytes);
      bytes += (packed_bytes(chunk.filled, p.k) + 63) / 64 * 64;
    }
    const MemoryScope scope(MemoryKind::kWorkspace);
    memory_ = allocate(bytes);
    parallel_for(static_cast<std::int64_t>(chunks.size()), [&](std::int64_t i) {
      pack_chunk(p, chunks[static_cast<std::size_t>(i)], of(static_cast<std::size_t>(i)));
    });
  }
  void* of(std::size_t chunk) const { return static_cast<char*>(memory_.get()) + starts_[chunk]; }

 private:
  static void pack_chunk(const WeightGradient<float>& p, const TokenChunk& chunk, void* packed) {
    const float* from = p.x + chunk.first * p.ldx;
    if (chunk.count == chunk.filled) return pack(from, p.ldx, false, chunk.filled, p.k, packed);
    float* rows =
        thread_scratch_of<float>(static_cast<std::size_t>(chunk.filled * p.k), kScratchSlot);
    std::fill_n(rows, chunk.filled * p.k, 0.0f);
    for (std::int64_t t = 0; t < chunk.count; ++t)
      std::copy_n(from + t * p.ldx, p.k, rows + t * p.k);
    pack(rows, p.k, false, chunk.filled, p.k, packed);
  }

  std::vector<std::size_t> starts_;
  std::shared_ptr<void> memory_;
};

// Rows of dw that one work item computes.
std::int64_t gradient_rows(std::int64_t n) { return n >= 256 ? 128 : n >= 64 ? 64 : 32; }

// The rows begin .. begin + height of dw.
void gradient_block(const WeightGradient<float>& p, const std::vector<TokenChunk>& chunks,
                    const PackedTokens& packed, std::int64_t begin, std::int64_t height) {
  float* turned =
      thread_scratch_of<float>(static_cast<std::size_t>(height * kTokens), kScratchSlot);
  for (std::size_t c = 0; c < chunks.size(); ++c) {
    const TokenChunk& chunk = chunks[c];
    vector_kernels<float>().transpose(p.dy + chunk.first * p.ldy + begin, p.ldy, chunk.count,
                                      height, turned, chunk.filled);
    for (std::int64_t r = 0; chunk.filled > chunk.count && r < height; ++r)
      std::fill(turned + r * chunk.filled + chunk.count, turned + (r + 1) * chunk.filled, 0.0f);
    multiply_packed({.m = height,
                     .n = p.k,
                     .k = chunk.filled,
                     .a = turned,
                     .lda = chunk.filled,
                     .packed = packed.of(c),
                     .c = p.dw + begin * p.k,
                     .accumulate = p.accumulate || c > 0});
  }
}

}  // namespace

void weight_gradient(const WeightGradient<double>& p) {
  const std::int64_t rows = gradient_rows(p.n);
  parallel_chunks(p.n, rows, [&](std::int64_t begin, std::int64_t end) {
    gemm(Gemm<double>{.transpose_a = true,
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
  });
}

void weight_gradient(const WeightGradient<float>& p) {
  if (p.t == 0 || reference_only()) {
    return gemm(Gemm<float>{.transpose_a = true,
                            .m = p.n,
                            .n = p.k,
                            .k = p.t,
                            .a = p.dy,
                            .lda = p.ldy,
                            .b = p.x,
                            .ldb = p.ldx,
                            .c = p.dw,
                            .ldc = p.k,
                            .accumulate = p.accumulate});
  }
  const std::vector<TokenChunk> chunks = token_chunks(p.t, p.k);
  const PackedTokens packed(p, chunks);
  parallel_chunks(p.n, gradient_rows(p.n), [&](std::int64_t begin, std::int64_t end) {
    gradient_block(p, chunks, packed, begin, end - begin);
  });
}

}  // namespace qkv::inline v0::kernels
