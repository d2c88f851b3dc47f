#include "support/tensors.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/random.h"

namespace qkv::testing {

Tensor random_tensor(const Shape& shape, std::uint64_t seed, DType dtype) {
  const Tensor tensor = Tensor::empty(shape, DType::kFloat64);
  Random random(seed);
  for (std::int64_t i = 0; i < tensor.numel(); ++i)
    tensor.data<double>()[i] = 2 * random.uniform() - 1;
  return tensor.to(dtype);
}

std::vector<double> values_of(const Tensor& tensor) {
  const Tensor wide = tensor.to(DType::kFloat64).contiguous();
  return {wide.data<double>(), wide.data<double>() + wide.numel()};
}

double relative_difference(const Tensor& a, const Tensor& b) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (!(a.shape() == b.shape())) return kInfinity;
  const std::vector<double> x = values_of(a), y = values_of(b);
  double difference = 0, largest = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double d = std::abs(x[i] - y[i]);
    if (std::isnan(d)) return kInfinity;
    difference = std::max(difference, d);
    largest = std::max(largest, std::abs(y[i]));
  }
  if (difference == 0) return 0;
  return largest == 0 ? kInfinity : difference / largest;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  if (!(a.shape() == b.shape()) || a.dtype() != b.dtype()) return false;
  const Tensor x = a.contiguous(), y = b.contiguous();
  return std::memcmp(x.raw(), y.raw(), x.nbytes()) == 0;
}

}  // namespace qkv::testing
