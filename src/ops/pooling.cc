#include "ops/pooling.h"

#include <cmath>
#include <string>

#include "kernels/vector.h"
#include "ops/common.h"
#include "tensor/layout_check.h"

namespace qkv::inline v0::ops {
namespace {

struct Name {
  const char* name;
  Pooling pooling;
};
constexpr Name kNames[] = {{"first", Pooling::kFirst},
                           {"mean", Pooling::kMean},
                           {"max", Pooling::kMax},
                           {"last", Pooling::kLast}};

void check_layout(const Tensor& x, const RaggedLayout& layout, const char* where) {
  check_matrix(x, where, "x");
  qkv::check_layout(layout, where);
  require<ShapeError>(layout.tokens() == x.dim(0), where, "expected a layout of {} tokens, got {}",
                      x.dim(0), layout.tokens());
  for (std::int64_t b = 0; b < layout.batch(); ++b)
    require<ShapeError>(layout.length(b) > 0, where,
                        "expected sequences of at least one token, got none in sequence {}", b);
}

// One sequence of `length` rows to one row.
template <class T>
void pool_rows(const T* x, T* y, std::int64_t length, std::int64_t width, Pooling pooling) {
  const auto& kernels = kernels::vector_kernels<T>();
  kernels.scale(pooling == Pooling::kLast ? x + (length - 1) * width : x, y, width, 1);
  if (pooling == Pooling::kMean) {
    for (std::int64_t t = 1; t < length; ++t) kernels.add(x + t * width, y, y, width);
    kernels.scale(y, y, width, 1.0 / static_cast<double>(length));
  } else if (pooling == Pooling::kMax) {
    for (std::int64_t t = 1; t < length; ++t) kernels.maximum(x + t * width, y, width);
  }
}

template <class T>
void pool_rows_backward(const T* dy, const T* x, T* dx, std::int64_t length, std::int64_t width,
                        Pooling pooling) {
  const auto& kernels = kernels::vector_kernels<T>();
  if (pooling == Pooling::kMean) {
    for (std::int64_t t = 0; t < length; ++t)
      kernels.scale(dy, dx + t * width, width, 1.0 / static_cast<double>(length));
    return;
  }
  for (std::int64_t i = 0; i < length * width; ++i) dx[i] = 0;
  if (pooling != Pooling::kMax) {
    kernels.scale(dy, pooling == Pooling::kLast ? dx + (length - 1) * width : dx, width, 1);
    return;
  }
  for (std::int64_t j = 0; j < width;
       ++j) {  // to the first maximum; a NaN counts as one, as in the forward
    std::int64_t best = 0;
    for (std::int64_t t = 1; t < length && !std::isnan(x[best * width + j]); ++t)
      if (x[t * width + j] > x[best * width + j] || std::isnan(x[t * width + j])) best = t;
    dx[best * width + j] = dy[j];
  }
}

}  // namespace

Pooling parse_pooling(std::string_view name) {
  std::string known;
  for (const Name& n : kNames) {
    if (n.name == name) return n.pooling;
    known += known.empty() ? n.name : std::string(", ") + n.name;
  }
  fail<ConfigError>("pooling", "expected one of {}, got '{}'", known, name);
}

const char* pooling_name(Pooling pooling) {
  for (const Name& n : kNames)
    if (n.pooling == pooling) return n.name;
  fail<ArgumentError>("pooling", "expected a known pooling, got number {}",
                      static_cast<int>(pooling));
}

Tensor pool(const Tensor& x, const RaggedLayout& layout, Pooling pooling) {
  check_layout(x, layout, "pool");
  const std::int64_t width = x.dim(1);
  Tensor y = Tensor::empty({layout.batch(), width}, x.dtype());
  dispatch_floating(x.dtype(), "pool", [&]<class T>(T) {
    parallel_for(layout.batch(), [&](std::int64_t b) {
      const std::int64_t start = layout.starts[static_cast<std::size_t>(b)];
      pool_rows(x.data<T>() + start * width, y.data<T>() + b * width, layout.length(b), width,
                pooling);
    });
  });
  return y;
}

Tensor pool_backward(const Tensor& dy, const Tensor& x, const RaggedLayout& layout,
                     Pooling pooling) {
  check_layout(x, layout, "pool_backward");
  const std::int64_t width = x.dim(1);
  check_like(dy, {layout.batch(), width}, x.dtype(), "pool_backward", "dy");
  Tensor dx = Tensor::empty(x.shape(), x.dtype());
  dispatch_floating(x.dtype(), "pool_backward", [&]<class T>(T) {
    parallel_for(layout.batch(), [&](std::int64_t b) {
      const std::int64_t at = layout.starts[static_cast<std::size_t>(b)] * width;
      pool_rows_backward(dy.data<T>() + b * width, x.data<T>() + at, dx.data<T>() + at,
                         layout.length(b), width, pooling);
    });
  });
  return dx;
}

}  // namespace qkv::inline v0::ops
