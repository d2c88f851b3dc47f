#include "support/op_case.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace qkv::testing {

Tensor random_normal(const Shape& shape, DType dtype, Random& random, double scale) {
  Tensor x = Tensor::empty(shape, DType::kFloat64);
  for (std::int64_t i = 0; i < x.numel(); ++i) x.data<double>()[i] = scale * random.normal();
  return x.to(dtype);
}

RaggedLayout ragged_rows(std::int64_t rows) {
  std::vector<std::int64_t> lengths;
  for (std::int64_t a = 1, b = 2, left = rows; left > 0;) {
    lengths.push_back(std::min(a, left));
    left -= lengths.back();
    b = std::exchange(a, b) + b;
    if (a > 60) a = 4, b = 9;
  }
  RaggedLayout layout = RaggedLayout::from_lengths(lengths);
  for (std::size_t i = 0; i < layout.samples.size(); ++i)
    layout.samples[i] = static_cast<std::int64_t>(7 + i);
  return layout;
}

double relative_difference(const Tensor& a, const Tensor& b) {
  const double infinity = std::numeric_limits<double>::infinity();
  if (a.shape() != b.shape()) return infinity;
  const Tensor x = a.to(DType::kFloat64).contiguous(), y = b.to(DType::kFloat64).contiguous();
  double difference = 0, largest = 0;
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    const double p = x.data<double>()[i], q = y.data<double>()[i];
    if (std::isnan(p) && std::isnan(q)) continue;
    if (p == q) {
      if (std::isfinite(q)) largest = std::max(largest, std::fabs(q));
      continue;
    }
    if (!std::isfinite(p) || !std::isfinite(q)) return infinity;
    difference = std::max(difference, std::fabs(p - q));
    largest = std::max(largest, std::fabs(q));
  }
  return difference == 0 ? 0 : difference / std::max(largest, std::numeric_limits<double>::min());
}

}  // namespace qkv::testing
