#include "support/op_case.h"

#include <algorithm>
#include <utility>

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

}  // namespace qkv::testing
