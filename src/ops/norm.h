// LayerNorm and RMSNorm, with the residual sum and dropout in front fused into the same pass.
#pragma once

#include "qkv/layout.h"
#include "qkv/random_key.h"
#include "qkv/tensor.h"

#include "ops/linear.h"

namespace qkv::inline v0::ops {

enum class NormKind { kLayer, kRms };

// layer: y = (x - mean) / sqrt(var + eps) * gamma + beta, biased variance by two passes (Ba et al.
// 2016). rms:   y = x / sqrt(mean(x^2) + eps) * gamma (Zhang and Sennrich 2019).
struct NormResult {
  Tensor y;     // [T, C]
  Tensor mean;  // [T] (layer only)
  Tensor rstd;  // [T]
};
// x: [T, C], gamma: [C], beta: [C] or undefined. fp32, fp64; statistics in fp32 or better.
// Gradient: norm_backward.
NormResult norm(const Tensor& x, NormKind kind, const Tensor& gamma, const Tensor& beta,
                double eps);

// What the backward pass needs of the forward one; mean for layer only.
struct NormState {
  NormKind kind;
  Tensor gamma, mean, rstd;
};
// Where the gradients of the weights go; an undefined tensor is skipped.
struct NormSlots {
  Tensor dgamma, dbeta;  // [C], [C]
  Into into = Into::kOverwrite;
};
// Writes dgamma and dbeta where `slots` says, and returns dx. If `add` is defined ([T, C]) it is
// added to dx: the gradient that arrives over the residual path.
Tensor norm_backward(const Tensor& dy, const Tensor& x, const NormState& state,
                     const NormSlots& slots, const Tensor& add = Tensor());

struct DropoutOptions {
  double p = 0;  // 0: none; 1: everything is dropped (zeros, zero gradients)
  RandomKey key;
  const RaggedLayout* layout =
      nullptr;  // gives (sample, position) of each row; required when p > 0
};

// y = x * keep / (1 - p). x: [T, C], rows as in the layout. fp32, fp64. Gradient: the same function
// on dy.
Tensor dropout(const Tensor& x, const DropoutOptions& options);

// sum = residual + dropout(x), y = norm(sum), in one pass over memory.
struct AddNormResult {
  Tensor sum;  // [T, C]
  NormResult norm;
};
AddNormResult add_norm(const Tensor& x, const Tensor& residual, const DropoutOptions& dropout,
                       NormKind kind, const Tensor& gamma, const Tensor& beta, double eps);

// sum = residual + dropout(x) alone. Gradient: dropout(dsum) for x, dsum for residual.
Tensor add_dropout(const Tensor& x, const Tensor& residual, const DropoutOptions& dropout);

// Plain sum of two tensors of one shape.
Tensor add(const Tensor& a, const Tensor& b);
void add_inplace(const Tensor& a, const Tensor& b);  // a += b

}  // namespace qkv::inline v0::ops
