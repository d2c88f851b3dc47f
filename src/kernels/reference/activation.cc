#include "kernels/activation.h"

#include <cmath>

namespace qkv::inline v0::kernels::reference {
namespace {

constexpr double kInverseSqrt2 = 0.70710678118654752440, kInverseSqrt2Pi = 0.39894228040143267794;
constexpr double kSqrt2OverPi = 0.79788456080286535588, kGeluCubic = 0.044715;

struct ValueAndSlope {
  double y, slope;
};

ValueAndSlope gelu(double x) {
  const double phi = 0.5 * std::erfc(-x * kInverseSqrt2);
  return {x * phi, phi + x * kInverseSqrt2Pi * std::exp(-0.5 * x * x)};
}

ValueAndSlope silu(double x) {
  const double s = 1 / (1 + std::exp(-x));
  return {x * s, s * (1 + x * (1 - s))};
}

ValueAndSlope gelu_tanh(double x) {
  const double t = std::tanh(kSqrt2OverPi * (x + kGeluCubic * x * x * x));
  return {0.5 * x * (1 + t),
          0.5 * (1 + t) + 0.5 * x * (1 - t * t) * kSqrt2OverPi * (1 + 3 * kGeluCubic * x * x)};
}

ValueAndSlope evaluate(Activation kind, double x) {
  switch (kind) {
    case Activation::kRelu:
      return {x <= 0 ? 0 : x, x > 0 ? 1.0 : 0.0};  // NaN stays
    case Activation::kGelu:
    case Activation::kGeglu:
      return gelu(x);
    case Activation::kGeluTanh:
    case Activation::kGegluTanh:
      return gelu_tanh(x);
    case Activation::kSilu:
    case Activation::kSwiglu:
      return silu(x);
    case Activation::kTanh: {
      const double t = std::tanh(x);
      return {t, 1 - t * t};
    }
    default:
      return {x, 1};
  }
}

template <class T>
void forward(const ActivationForward<T>& p) {
  const bool gated = is_gated(p.kind);
  for (std::int64_t r = 0; r < p.rows; ++r) {
    const T* in = p.in + r * p.in_stride;
    for (std::int64_t j = 0; j < p.width; ++j) {
      const double value = evaluate(p.kind, in[j]).y;
      p.y[r * p.y_stride + j] = static_cast<T>(gated ? value * in[p.width + j] : value);
    }
  }
}

// Gradient of element j of a row: one value, or two for a gated pair.
template <class T>
void backward(const ActivationBackward<T>& p) {
  const bool gated = is_gated(p.kind);
  for (std::int64_t j = 0; p.dbias && j < (gated ? 2 : 1) * p.width; ++j) p.dbias[j] = 0;
  for (std::int64_t j = 0; j < p.width; ++j) {
    double sum_a = 0, sum_b = 0;
    for (std::int64_t r = 0; r < p.rows; ++r) {
      const double dy = p.dy[r * p.dy_stride + j];
      const std::int64_t at = r * p.pre_stride + j;
      double da = dy, db = 0;
      if (p.kind != Activation::kNone) {
        const ValueAndSlope f = evaluate(p.kind, p.pre[at]);
        const double b = gated ? static_cast<double>(p.pre[at + p.width]) : 1.0;
        da = dy * f.slope * b;
        db = dy * f.y;
      }
      sum_a += da;
      sum_b += db;
      if (!p.dpre) continue;
      p.dpre[at] = static_cast<T>(da);
      if (gated) p.dpre[at + p.width] = static_cast<T>(db);
    }
    if (!p.dbias) continue;
    p.dbias[j] = static_cast<T>(sum_a);
    if (gated) p.dbias[p.width + j] = static_cast<T>(sum_b);
  }
}

}  // namespace

const ActivationKernels<float> kActivationF32 = {forward<float>, backward<float>};
const ActivationKernels<double> kActivationF64 = {forward<double>, backward<double>};

}  // namespace qkv::inline v0::kernels::reference
