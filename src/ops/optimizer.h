// Passes over flat parameter buffers: gradient norm, AdamW, SGD.
#pragma once

#include <cstdint>
#include <span>

#include "qkv/tensor.h"

namespace qkv::inline v0::ops {

// Sum of squares in double; fixed chunks added in index order. +inf or NaN if an entry is.
double sum_of_squares(const Tensor& x);

// Index of the first non-finite element of a contiguous fp32/fp64 tensor, or -1.
std::int64_t find_non_finite(const Tensor& x);

struct AdamWStep {
  double learning_rate = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  double gradient_scale = 1;  // clipping and averaging, applied to the gradient first
  std::int64_t t = 1;         // this update's number, from 1
};
// Loshchilov and Hutter 2019: theta -= lr * decay * theta; m, v moving averages; theta -= lr * mhat
// / (sqrt(vhat) + eps). theta, g, m, v: contiguous, one shape, fp32. One pass; zeroes g afterwards
// if zero_gradient.
void adamw(const Tensor& theta, const Tensor& g, const Tensor& m, const Tensor& v,
           const AdamWStep& step, bool zero_gradient);
// theta -= lr * (scale * g + decay * theta) with momentum buffer m (may be undefined): as
// torch.optim.SGD.
void sgd(const Tensor& theta, const Tensor& g, const Tensor& m, double learning_rate,
         double momentum, double weight_decay, double gradient_scale);

}  // namespace qkv::inline v0::ops
