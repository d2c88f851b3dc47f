// Making and comparing tensors in tests.
#pragma once

#include <cstdint>
#include <vector>

#include "qkv/tensor.h"

namespace qkv::testing {

// Uniform in [-1, 1), a pure function of shape and seed.
Tensor random_tensor(const Shape& shape, std::uint64_t seed, DType dtype = DType::kFloat64);

// max |a - b| / max |b|, in double; 0 for two all-zero tensors, infinity for other shapes or a NaN.
double relative_difference(const Tensor& a, const Tensor& b);

// Same shape, dtype and bytes (so NaN equals NaN, and 0 does not equal -0).
bool same_bits(const Tensor& a, const Tensor& b);

// All elements, converted to double, row-major.
std::vector<double> values_of(const Tensor& tensor);

}  // namespace qkv::testing
