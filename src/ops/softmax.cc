#include "ops/softmax.h"

#include "kernels/softmax.h"
#include "ops/common.h"

namespace qkv::inline v0::ops {
namespace {

// Any rank >= 1 as rows over the last dimension.
struct Rows {
  std::int64_t rows, width;
};
Rows rows_of(const Tensor& x, const char* where) {
  require<ShapeError>(x.defined() && x.rank() >= 1 && x.is_contiguous(), where,
                      "expected a contiguous tensor of rank 1 or more, got shape {}",
                      x.defined() ? x.shape().str() : "none");
  const std::int64_t width = x.dim(-1);
  return {width == 0 ? 0 : x.numel() / width, width};
}

}  // namespace

Tensor softmax(const Tensor& x) {
  const Rows r = rows_of(x, "softmax");
  Tensor y = Tensor::empty(x.shape(), x.dtype());
  dispatch_floating(x.dtype(), "softmax", [&]<class T>(T) {
    const auto& kernels = kernels::softmax_kernels<T>();
    parallel_chunks(r.rows, kChunkRows, [&](std::int64_t begin, std::int64_t end) {
      kernels.forward(x.data<T>() + begin * r.width, y.data<T>() + begin * r.width, end - begin,
                      r.width);
    });
  });
  return y;
}

Tensor softmax_backward(const Tensor& dy, const Tensor& y) {
  const Rows r = rows_of(y, "softmax_backward");
  check_like(dy, y.shape(), y.dtype(), "softmax_backward", "dy");
  Tensor dx = Tensor::empty(y.shape(), y.dtype());
  dispatch_floating(y.dtype(), "softmax_backward", [&]<class T>(T) {
    const auto& kernels = kernels::softmax_kernels<T>();
    parallel_chunks(r.rows, kChunkRows, [&](std::int64_t begin, std::int64_t end) {
      const std::int64_t at = begin * r.width;
      kernels.backward(dy.data<T>() + at, y.data<T>() + at, dx.data<T>() + at, end - begin,
                       r.width);
    });
  });
  return dx;
}

CrossEntropyResult cross_entropy(const Tensor& logits, std::span<const std::int32_t> targets,
                                 const CrossEntropyOptions& options, bool need_gradient) {
  const char* where = "cross_entropy";
  check_matrix(logits, where, "logits");
  const std::int64_t rows = logits.dim(0), width = logits.dim(1);
  require<ShapeError>(static_cast<std::int64_t>(targets.size()) == rows, where,
                      "expected one target per row: {}, got {}", rows, targets.size());
  require<ArgumentError>(options.label_smoothing >= 0 && options.label_smoothing <= 1, where,
                         "expected label smoothing in [0, 1], got {}", options.label_smoothing);
  for (std::size_t t = 0; t < targets.size(); ++t) {
    const bool known = targets[t] >= 0 && targets[t] < width;
    if (!known && targets[t] != options.ignore_index)
      fail<ArgumentError>(where, "expected targets in [0, {}) or {} (ignored), got {} in row {}",
                          width, options.ignore_index, targets[t], t);
  }
  CrossEntropyResult result;
  if (need_gradient) result.dlogits = Tensor::empty(logits.shape(), logits.dtype());
  std::vector<kernels::CrossEntropySums> sums(
      static_cast<std::size_t>(chunk_count(rows, kChunkRows)));
  dispatch_floating(logits.dtype(), where, [&]<class T>(T) {
    const auto& kernels = kernels::softmax_kernels<T>();
    parallel_chunks(rows, kChunkRows, [&](std::int64_t begin, std::int64_t end) {
      sums[static_cast<std::size_t>(begin / kChunkRows)] = kernels.cross_entropy(
          {.rows = end - begin,
           .width = width,
           .logits = logits.data<T>() + begin * width,
           .targets = targets.data() + begin,
           .smoothing = options.label_smoothing,
           .ignore_index = options.ignore_index,
           .dlogits = need_gradient ? result.dlogits.data<T>() + begin * width : nullptr});
    });
  });
  for (const kernels::CrossEntropySums& s : sums) {
    result.loss_sum += s.loss;
    result.counted += s.counted;
    result.correct += s.correct;
  }
  return result;
}

}  // namespace qkv::inline v0::ops
