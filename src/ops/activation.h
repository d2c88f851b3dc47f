// Elementwise activations and gated pairs.
#pragma once

#include <string>
#include <string_view>

#include "qkv/tensor.h"

namespace qkv::inline v0::ops {

// kGelu: x * Phi(x) by erf (BERT). kGeluTanh: 0.5 x (1 + tanh(sqrt(2/pi)(x + 0.044715 x^3))) (GPT-2, Hendrycks and
// Gimpel 2016). kSilu: x * sigmoid(x). kSwiglu, kGeglu: gated pairs (Shazeer 2020): silu(a) * b, gelu(a) * b.
// kTanh: of BERT's pooler.
enum class Activation { kNone, kRelu, kGelu, kGeluTanh, kSilu, kSwiglu, kGeglu, kTanh };
constexpr bool is_gated(Activation a) { return a == Activation::kSwiglu || a == Activation::kGeglu; }
const char* activation_name(Activation activation);  // "gelu", "gelu_tanh", "relu", "silu", "swiglu", "geglu", "tanh", "none"
// Also Hugging Face's names (gelu_new, gelu_fast, gelu_pytorch_tanh, swish). ConfigError naming the known ones otherwise.
Activation parse_activation(std::string_view name);

// y = activation(x): [T, N] -> [T, N], or [T, 2F] -> [T, F] for gated kinds. fp32, fp64. Gradient: below.
// Accuracy fp32: 4 ULP of max(|x|, 1) scale; NaN in, NaN out.
Tensor activate(const Tensor& x, Activation activation);
// dx from dy and the forward's input x.
Tensor activate_backward(const Tensor& dy, const Tensor& x, Activation activation);

}  // namespace qkv::inline v0::ops
