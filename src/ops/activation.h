// Elementwise activations and gated pairs.
#pragma once

#include <string_view>

#include "qkv/tensor.h"

#include "kernels/activation.h"

namespace qkv::inline v0::ops {

// See kernels/activation.h for the formulas.
using kernels::Activation;
using kernels::is_gated;
const char* activation_name(
    Activation activation);  // "gelu", "gelu_tanh", "relu", "silu",
                             // "swiglu", "geglu", "geglu_tanh", "tanh", "none"
// Also Hugging Face's names (gelu_new, gelu_fast, gelu_pytorch_tanh, swish). ConfigError naming the
// known ones otherwise.
Activation parse_activation(std::string_view name);

// y = activation(x): [T, N] -> [T, N], or [T, 2F] -> [T, F] for gated kinds. fp32, fp64. Gradient:
// below. Accuracy fp32: 4 ULP of max(|x|, 1) scale; NaN in, NaN out.
Tensor activate(const Tensor& x, Activation activation);
// dx from dy and the forward's input x.
Tensor activate_backward(const Tensor& dy, const Tensor& x, Activation activation);

}  // namespace qkv::inline v0::ops
