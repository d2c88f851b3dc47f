#include "ops/optimizer.h"

#include <cmath>

#include "kernels/vector.h"
#include "ops/common.h"

namespace qkv::inline v0::ops {
namespace {

void check_parameter(const Tensor& theta, const char* where) {
  require<ShapeError>(theta.defined() && theta.is_contiguous(), where,
                      "expected contiguous parameters");
}

void check_defined(const Tensor& x, const char* where) {
  require<ShapeError>(x.defined() && x.is_contiguous(), where, "expected a contiguous tensor");
}

}  // namespace

double sum_of_squares(const Tensor& x) {
  check_defined(x, "sum_of_squares");
  std::vector<double> sums(static_cast<std::size_t>(chunk_count(x.numel(), kChunkElements)));
  dispatch_floating(x.dtype(), "sum_of_squares", [&]<class T>(T) {
    const auto& kernels = kernels::vector_kernels<T>();
    parallel_chunks(x.numel(), kChunkElements, [&](std::int64_t begin, std::int64_t end) {
      sums[static_cast<std::size_t>(begin / kChunkElements)] =
          kernels.sum_of_squares(x.data<T>() + begin, end - begin);
    });
  });
  double total = 0;
  for (const double s : sums) total += s;
  return total;
}

std::int64_t find_non_finite(const Tensor& x) {
  check_defined(x, "find_non_finite");
  std::vector<std::int64_t> found(static_cast<std::size_t>(chunk_count(x.numel(), kChunkElements)),
                                  -1);
  dispatch_floating(x.dtype(), "find_non_finite", [&]<class T>(T) {
    const auto& kernels = kernels::vector_kernels<T>();
    parallel_chunks(x.numel(), kChunkElements, [&](std::int64_t begin, std::int64_t end) {
      const std::int64_t at = kernels.find_non_finite(x.data<T>() + begin, end - begin);
      found[static_cast<std::size_t>(begin / kChunkElements)] = at < 0 ? -1 : begin + at;
    });
  });
  for (const std::int64_t at : found)
    if (at >= 0) return at;
  return -1;
}

void adamw(const Tensor& theta, const Tensor& g, const Tensor& m, const Tensor& v,
           const AdamWStep& step, bool zero_gradient) {
  const char* where = "adamw";
  check_parameter(theta, where);
  check_like(g, theta.shape(), theta.dtype(), where, "g");
  check_like(m, theta.shape(), theta.dtype(), where, "m");
  check_like(v, theta.shape(), theta.dtype(), where, "v");
  require<ArgumentError>(step.t >= 1, where, "expected the number of the update from 1, got {}",
                         step.t);
  const auto t = static_cast<double>(step.t);
  dispatch_floating(theta.dtype(), where, [&]<class T>(T) {
    const auto& kernels = kernels::vector_kernels<T>();
    parallel_chunks(theta.numel(), kChunkElements, [&](std::int64_t begin, std::int64_t end) {
      kernels.adamw({.n = end - begin,
                     .theta = theta.data<T>() + begin,
                     .g = g.data<T>() + begin,
                     .m = m.data<T>() + begin,
                     .v = v.data<T>() + begin,
                     .beta1 = step.beta1,
                     .beta2 = step.beta2,
                     .eps = step.eps,
                     .decay = 1 - step.learning_rate * step.weight_decay,
                     .rate = step.learning_rate / (1 - std::pow(step.beta1, t)),
                     .inverse_root = 1 / std::sqrt(1 - std::pow(step.beta2, t)),
                     .scale = step.gradient_scale,
                     .zero = zero_gradient});
    });
  });
}

void sgd(const Tensor& theta, const Tensor& g, const Tensor& m, double learning_rate,
         double momentum, double weight_decay, double gradient_scale) {
  const char* where = "sgd";
  check_parameter(theta, where);
  check_like(g, theta.shape(), theta.dtype(), where, "g");
  if (m.defined()) check_like(m, theta.shape(), theta.dtype(), where, "m");
  dispatch_floating(theta.dtype(), where, [&]<class T>(T) {
    const auto& kernels = kernels::vector_kernels<T>();
    parallel_chunks(theta.numel(), kChunkElements, [&](std::int64_t begin, std::int64_t end) {
      kernels.sgd({.n = end - begin,
                   .theta = theta.data<T>() + begin,
                   .g = g.data<T>() + begin,
                   .m = m.defined() ? m.data<T>() + begin : nullptr,
                   .rate = learning_rate,
                   .momentum = momentum,
                   .decay = weight_decay,
                   .scale = gradient_scale});
    });
  });
}

}  // namespace qkv::inline v0::ops
