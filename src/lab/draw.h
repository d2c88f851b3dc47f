// Random tensors for experiments.
#pragma once

#include "qkv/attention.h"
#include "qkv/tensor.h"

#include "base/random.h"

namespace qkv::inline v0::lab {

// Independent numbers of mean 0 and variance 1, drawn in fp64 and rounded to `dtype`.
inline Tensor normal_tensor(Random& random, const Shape& shape, DType dtype = DType::kFloat32) {
  const Tensor x = Tensor::empty(shape, DType::kFloat64);
  double* data = x.data<double>();
  for (std::int64_t i = 0; i < x.numel(); ++i) data[i] = random.normal();
  return x.to(dtype);
}

// Queries, keys and values of one head, drawn in this order.
inline ops::AttentionInput normal_attention(Random& random, std::int64_t queries, std::int64_t keys,
                                            std::int64_t width) {
  ops::AttentionInput input;
  input.q = normal_tensor(random, {1, queries, 1, width});
  input.k = normal_tensor(random, {1, keys, 1, width});
  input.v = normal_tensor(random, {1, keys, 1, width});
  return input;
}

}  // namespace qkv::inline v0::lab
