#include "kernels/activation.h"

#include "kernels/simd/vec.h"

namespace qkv::inline v0::kernels::QKV_ISA {
extern const ActivationKernels<float> kActivation;
namespace {

constexpr float kSqrt2OverPi = 0.7978845608f, kGeluCubic = 0.044715f;

struct ValueAndSlope {
  F32 y, slope;
};

QKV_INLINE ValueAndSlope gelu(F32 x) {
  const NormalTail t = normal_tail(x);
  const F32 phi = select(x > zero(), set(1.0f) - t.tail, t.tail);
  const F32 low = max(set(-12.5f), x);  // the tail goes on as a constant below
  return {low * phi, fma(min(set(12.5f), low), t.density, phi)};
}

// The slope's x is bounded as the sigmoid's is, the value's only below: beyond, both are 0 or x.
QKV_INLINE ValueAndSlope silu(F32 x) {
  const Sigmoid s = sigmoid(x);
  return {max(set(-87.0f), x) * s.value, s.value * fma(s.x, s.rest, set(1.0f))};
}

// (1 + tanh u) / 2 = sigmoid(2 u).
QKV_INLINE ValueAndSlope gelu_tanh(F32 x) {
  const F32 bounded = min(set(10.0f), max(set(-10.0f), x)), square = bounded * bounded;
  const F32 u2 = set(2 * kSqrt2OverPi) * bounded * fma(set(kGeluCubic), square, set(1.0f));
  const Sigmoid s = sigmoid(u2);
  const F32 du2 = set(2 * kSqrt2OverPi) * fma(set(3 * kGeluCubic), square, set(1.0f));
  return {max(set(-10.0f), x) * s.value, fma(bounded * du2, s.value * s.rest, s.value)};
}

// From the sigmoid, and from the series below 0.3, where 2 sigmoid - 1 cancels.
QKV_INLINE ValueAndSlope tanh(F32 x) {
  const Sigmoid s = sigmoid(x + x);
  const F32 square = x * x;
  F32 p = set(62.0f / 2835);
  p = fma(p, square, set(-17.0f / 315));
  p = fma(p, square, set(2.0f / 15));
  p = fma(p, square, set(-1.0f / 3));
  const F32 series = fma(p * square, x, x);
  const F32 t = select(abs(x) < set(0.3f), series, fma(set(2.0f), s.value, set(-1.0f)));
  return {t, set(4.0f) * s.value * s.rest};
}

template <Activation kKind>
QKV_INLINE ValueAndSlope evaluate(F32 x) {
  if constexpr (kKind == Activation::kRelu) {
    const F32 one = keep(x > zero(), set(1.0f));
    return {select(x <= zero(), zero(), x), one};  // NaN stays
  } else if constexpr (kKind == Activation::kGelu || kKind == Activation::kGeglu) {
    return gelu(x);
  } else if constexpr (kKind == Activation::kGeluTanh || kKind == Activation::kGegluTanh) {
    return gelu_tanh(x);
  } else if constexpr (kKind == Activation::kSilu || kKind == Activation::kSwiglu) {
    return silu(x);
  } else if constexpr (kKind == Activation::kTanh) {
    return tanh(x);
  } else {
    return {x, set(1.0f)};
  }
}

template <Activation kKind>
constexpr bool kGated = is_gated(kKind);

template <Activation kKind>
void forward_rows(const ActivationForward<float>& p) {
  const std::int64_t ahead = fetch_ahead(p.in_stride);
  for (std::int64_t r = 0; r < p.rows; ++r) {
    const float* in = p.in + r * p.in_stride;
    float* y = p.y + r * p.y_stride;
    for_lanes(p.width, [&](std::int64_t j, auto lanes) QKV_BODY {
      fetch(in + ahead, j);
      F32 value = evaluate<kKind>(lanes.load(in + j)).y;
      if constexpr (kGated<kKind>) {
        fetch(in + p.width + ahead, j);
        value = value * lanes.load(in + p.width + j);
      }
      lanes.store(y + j, value);
    });
  }
}

template <class Lanes>
QKV_INLINE void accumulate(Lanes lanes, float* sums, F32 value) {
  if (sums) lanes.store(sums, lanes.load(sums) + value);
}

template <Activation kKind>
void backward_rows(const ActivationBackward<float>& p) {
  float* const dbias_b = p.dbias ? p.dbias + p.width : nullptr;
  const std::int64_t ahead = fetch_ahead(p.pre_stride), ahead_dy = fetch_ahead(p.dy_stride);
  for (std::int64_t r = 0; r < p.rows; ++r) {
    const float *dy = p.dy + r * p.dy_stride, *pre = p.pre + r * p.pre_stride;
    float* dpre = p.dpre ? p.dpre + r * p.pre_stride : nullptr;
    for_lanes(p.width, [&](std::int64_t j, auto lanes) QKV_BODY {
      fetch(dy + ahead_dy, j);
      fetch(pre + ahead, j);
      const F32 d = lanes.load(dy + j);
      const ValueAndSlope f = evaluate<kKind>(lanes.load(pre + j));
      F32 da = d * f.slope;
      if constexpr (kGated<kKind>) {
        fetch(pre + p.width + ahead, j);
        const F32 db = d * f.y;
        da = da * lanes.load(pre + p.width + j);
        if (dpre) lanes.store(dpre + p.width + j, db);
        accumulate(lanes, dbias_b ? dbias_b + j : nullptr, db);
      }
      if (dpre) lanes.store(dpre + j, da);
      accumulate(lanes, p.dbias ? p.dbias + j : nullptr, da);
    });
  }
}

// Without an activation only the sums over the rows are left, four rows at a time.
void column_sums(const ActivationBackward<float>& p) {
  std::int64_t r = 0;
  for (; r + 4 <= p.rows; r += 4) {
    const float* dy = p.dy + r * p.dy_stride;
    for_lanes(p.width, [&](std::int64_t j, auto lanes) QKV_BODY {
      const F32 low = lanes.load(dy + j) + lanes.load(dy + p.dy_stride + j);
      const F32 high = lanes.load(dy + 2 * p.dy_stride + j) + lanes.load(dy + 3 * p.dy_stride + j);
      accumulate(lanes, p.dbias + j, low + high);
    });
  }
  for (; r < p.rows; ++r) {
    const float* dy = p.dy + r * p.dy_stride;
    for_lanes(p.width, [&](std::int64_t j, auto lanes)
                           QKV_BODY { accumulate(lanes, p.dbias + j, lanes.load(dy + j)); });
  }
}

void copy_rows(const ActivationBackward<float>& p) {
  for (std::int64_t r = 0; r < p.rows; ++r) {
    for_lanes(p.width, [&](std::int64_t j, auto lanes) QKV_BODY {
      lanes.store(p.dpre + r * p.pre_stride + j, lanes.load(p.dy + r * p.dy_stride + j));
    });
  }
}

void forward(const ActivationForward<float>& p) {
  switch (p.kind) {
    case Activation::kNone:
      return forward_rows<Activation::kNone>(p);
    case Activation::kRelu:
      return forward_rows<Activation::kRelu>(p);
    case Activation::kGelu:
      return forward_rows<Activation::kGelu>(p);
    case Activation::kGeluTanh:
      return forward_rows<Activation::kGeluTanh>(p);
    case Activation::kSilu:
      return forward_rows<Activation::kSilu>(p);
    case Activation::kSwiglu:
      return forward_rows<Activation::kSwiglu>(p);
    case Activation::kGeglu:
      return forward_rows<Activation::kGeglu>(p);
    case Activation::kTanh:
      return forward_rows<Activation::kTanh>(p);
    case Activation::kGegluTanh:
      return forward_rows<Activation::kGegluTanh>(p);
  }
}

void backward(const ActivationBackward<float>& p) {
  const bool gated = is_gated(p.kind);
  for (std::int64_t j = 0; p.dbias && j < (gated ? 2 : 1) * p.width; ++j) p.dbias[j] = 0;
  switch (p.kind) {
    case Activation::kNone:
      if (p.dbias) column_sums(p);
      if (p.dpre) copy_rows(p);
      return;
    case Activation::kRelu:
      return backward_rows<Activation::kRelu>(p);
    case Activation::kGelu:
      return backward_rows<Activation::kGelu>(p);
    case Activation::kGeluTanh:
      return backward_rows<Activation::kGeluTanh>(p);
    case Activation::kSilu:
      return backward_rows<Activation::kSilu>(p);
    case Activation::kSwiglu:
      return backward_rows<Activation::kSwiglu>(p);
    case Activation::kGeglu:
      return backward_rows<Activation::kGeglu>(p);
    case Activation::kTanh:
      return backward_rows<Activation::kTanh>(p);
    case Activation::kGegluTanh:
      return backward_rows<Activation::kGegluTanh>(p);
  }
}

}  // namespace

const ActivationKernels<float> kActivation = {forward, backward};

}  // namespace qkv::inline v0::kernels::QKV_ISA
