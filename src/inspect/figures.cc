#include "inspect/figures.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "base/check.h"

namespace qkv::inline v0::inspect {
namespace {

std::string kind_of(const HeadFigures& f, double even_near) {
  constexpr double kMost = 0.5, kNear = 0.7, kEven = 0.95;
  if (f.diagonal >= kMost) return "diagonal";
  if (f.previous >= kMost) return "previous";
  if (f.next >= kMost) return "next";
  if (f.first >= kMost) return "first";
  if (f.largest >= kMost) return "sparse";
  if (f.near >= kNear && even_near < kMost) return "block";
  if (f.entropy_share >= kEven) return "even";
  return "mixed";
}

}  // namespace

HeadFigures head_figures(const Tensor& weights) {
  require<ShapeError>(weights.rank() == 2 && weights.dim(0) == weights.dim(1) &&
                          weights.dim(0) >= 1 && weights.is_contiguous(),
                      "head figures", "expected contiguous weights [N, N], got {}",
                      weights.shape().str());
  const std::int64_t n = weights.dim(0), reach = std::max<std::int64_t>(2, n / 10);
  const float* w = weights.data<float>();
  HeadFigures f;
  double even_near = 0;
  for (std::int64_t i = 0; i < n; ++i, w += n) {
    double largest = 0;
    for (std::int64_t j = 0; j < n; ++j) {
      const double p = w[j];
      const std::int64_t distance = std::abs(i - j);
      if (p > 0) f.entropy -= p * std::log(p);
      f.mean_distance += p * static_cast<double>(distance);
      largest = std::max(largest, p);
      if (distance <= reach) {
        f.near += p;
        even_near += 1.0 / static_cast<double>(n);
      }
    }
    f.largest += largest;
    f.diagonal += w[i];
    if (i > 0) f.previous += w[i - 1];
    if (i + 1 < n) f.next += w[i + 1];
    if (i > 0) f.first += w[0];
  }
  const auto rows = static_cast<double>(n),
             others = static_cast<double>(std::max<std::int64_t>(n - 1, 1));
  for (double* mean : {&f.entropy, &f.mean_distance, &f.largest, &f.diagonal, &f.near})
    *mean /= rows;
  for (double* mean : {&f.previous, &f.next, &f.first}) *mean /= others;
  f.entropy_share = n > 1 ? f.entropy / std::log(rows) : 0;
  f.kind = kind_of(f, even_near / rows);
  return f;
}

Json HeadFigures::to_json() const {
  Json out = Json::object();
  out["entropy"] = entropy;
  out["entropy_share"] = entropy_share;
  out["mean_distance"] = mean_distance;
  out["largest"] = largest;
  out["diagonal"] = diagonal;
  out["previous"] = previous;
  out["next"] = next;
  out["first"] = first;
  out["near"] = near;
  out["class"] = kind;
  return out;
}

TensorFigures tensor_figures(const Tensor& tensor) {
  const Tensor values = tensor.to(DType::kFloat64).contiguous();
  const double* x = values.data<double>();
  TensorFigures f;
  f.count = values.numel();
  double sum = 0, low = std::numeric_limits<double>::infinity(), high = -low;
  for (std::int64_t i = 0; i < f.count; ++i) {
    if (std::isnan(x[i])) {
      ++f.nan;
    } else if (std::isinf(x[i])) {
      ++f.infinite;
    } else {
      sum += x[i];
      low = std::min(low, x[i]);
      high = std::max(high, x[i]);
    }
  }
  const std::int64_t finite = f.count - f.nan - f.infinite;
  if (finite == 0) return f;
  f.mean = sum / static_cast<double>(finite);
  f.min = low;
  f.max = high;
  double squares = 0;
  for (std::int64_t i = 0; i < f.count; ++i) {
    if (std::isfinite(x[i])) squares += (x[i] - f.mean) * (x[i] - f.mean);
  }
  f.deviation = std::sqrt(squares / static_cast<double>(finite));
  return f;
}

Json TensorFigures::to_json() const {
  Json out = Json::object();
  out["mean"] = mean;
  out["std"] = deviation;
  out["min"] = min;
  out["max"] = max;
  out["non_finite"] = nan + infinite;
  out["nan"] = nan;
  out["inf"] = infinite;
  out["count"] = count;
  return out;
}

}  // namespace qkv::inline v0::inspect
