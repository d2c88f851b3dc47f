// What the ops share: dtype dispatch, argument checks, the fixed chunks of parallel passes.
#pragma once

#include <cstdint>
#include <vector>

#include "qkv/tensor.h"

#include "base/check.h"
#include "base/memory.h"
#include "base/thread_pool.h"

namespace qkv::inline v0::ops {

// Rows of one work item. Sums over rows are formed per chunk and added in the order of the chunks,
// so that bits depend on neither the number of threads nor which of them ran a chunk.
inline constexpr std::int64_t kChunkRows = 256;
// Elements of one work item of a pass without rows.
inline constexpr std::int64_t kChunkElements = 16384;

// thread_scratch slot of the ops; 0 and 1 belong to the products.
inline constexpr int kScratchSlot = 2;

constexpr std::int64_t chunk_count(std::int64_t n, std::int64_t chunk) {
  return (n + chunk - 1) / chunk;
}

// Calls f(float{}) or f(double{}).
template <class F>
decltype(auto) dispatch_floating(DType dtype, const char* where, F&& f) {
  if (dtype == DType::kFloat32) return f(float{});
  require<ShapeError>(dtype == DType::kFloat64, where,
                      "expected float32 or float64, got {}; convert with Tensor::to",
                      dtype_name(dtype));
  return f(double{});
}

// A defined, contiguous tensor of rank 2 (or the given shape) and dtype.
inline void check_matrix(const Tensor& x, const char* where, const char* name) {
  require<ShapeError>(x.defined() && x.rank() == 2, where,
                      "expected {} to be a matrix, got shape {}", name,
                      x.defined() ? x.shape().str() : "none");
  require<ShapeError>(x.is_contiguous(), where,
                      "expected {} to be contiguous; call contiguous() first", name);
}
inline void check_like(const Tensor& x, const Shape& shape, DType dtype, const char* where,
                       const char* name) {
  require<ShapeError>(x.defined() && x.shape() == shape && x.dtype() == dtype, where,
                      "expected {} to be {} {}, got {} {}", name, dtype_name(dtype), shape.str(),
                      x.defined() ? dtype_name(x.dtype()) : "",
                      x.defined() ? x.shape().str() : "none");
  require<ShapeError>(x.is_contiguous(), where,
                      "expected {} to be contiguous; call contiguous() first", name);
}

template <class T>
T* data_or_null(const Tensor& x) {
  return x.defined() ? x.data<T>() : nullptr;
}

// Scratch of [chunks, width] for sums over rows.
template <class T>
class Partials {
 public:
  Partials(std::int64_t chunks, std::int64_t width, bool wanted = true)
      : chunks_(chunks), width_(width) {
    const MemoryScope scope(MemoryKind::kWorkspace);
    if (wanted) sums_ = Tensor::empty({chunks, width}, dtype_of<T>());
  }
  T* of(std::int64_t chunk) const {
    return sums_.defined() ? sums_.data<T>() + chunk * width_ : nullptr;
  }
  // target[j] = or += the sum over the chunks, in their order.
  void add_to(T* target, bool add) const {
    for (std::int64_t j = 0; !add && j < width_; ++j) target[j] = 0;
    for (std::int64_t c = 0; c < chunks_; ++c) {
      const T* from = of(c);
      for (std::int64_t j = 0; j < width_; ++j) target[j] += from[j];
    }
  }

 private:
  std::int64_t chunks_, width_;
  Tensor sums_;
};

}  // namespace qkv::inline v0::ops
