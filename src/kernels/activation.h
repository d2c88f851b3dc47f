// Elementwise activations over rows, with the sums for the bias' gradient in the backward pass.
#pragma once

#include <cstdint>

namespace qkv::inline v0::kernels {

// kGelu: x Phi(x) by erf (BERT). kGeluTanh: 0.5 x (1 + tanh(sqrt(2/pi)(x + 0.044715 x^3)))
// (Hendrycks and Gimpel 2016). kSilu: x sigmoid(x). kSwiglu, kGeglu: gated pairs (Shazeer 2020):
// silu(a) b, gelu(a) b with a the left half of a row and b the right one; kGegluTanh: gelu_tanh(a)
// b (Gemma). kTanh: of BERT's pooler.
enum class Activation { kNone, kRelu, kGelu, kGeluTanh, kSilu, kSwiglu, kGeglu, kTanh, kGegluTanh };
constexpr bool is_gated(Activation a) {
  return a == Activation::kSwiglu || a == Activation::kGeglu || a == Activation::kGegluTanh;
}

// y = activation(in). Rows of `in` hold `width` elements (2 width if gated), rows of y `width`.
template <class T>
struct ActivationForward {
  Activation kind;
  std::int64_t rows, width;
  const T* in;
  std::int64_t in_stride;
  T* y;  // may be `in` if not gated
  std::int64_t y_stride;
};

// dpre = dy activation'(pre); dbias[j] = sum over the rows, in row order.
template <class T>
struct ActivationBackward {
  Activation kind;
  std::int64_t rows, width;  // of dy
  const T* dy;
  std::int64_t dy_stride;
  const T* pre;  // unused for kNone
  std::int64_t pre_stride;
  T* dpre;   // stride pre_stride, may be `pre`; null: not written
  T* dbias;  // [width], [2 width] if gated; null: not asked for
};

template <class T>
struct ActivationKernels {
  void (*forward)(const ActivationForward<T>&);
  void (*backward)(const ActivationBackward<T>&);
};

// The implementation in use. fp32 accuracy of the SIMD ones: |error| <= 4 ULP of max(|x|, 1); NaN
// stays NaN.
template <class T>
const ActivationKernels<T>& activation_kernels();

namespace reference {
extern const ActivationKernels<float> kActivationF32;
extern const ActivationKernels<double> kActivationF64;
}  // namespace reference

}  // namespace qkv::inline v0::kernels
