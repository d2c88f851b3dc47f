#include "kernels/vector.h"

#include "kernels/simd/vec.h"

namespace qkv::inline v0::kernels::QKV_ISA {
extern const VectorKernels<float> kVector;
namespace {

void add(const float* a, const float* b, float* y, std::int64_t n) {
  for_lanes(n, [&](std::int64_t i, auto lanes)
                   QKV_BODY { lanes.store(y + i, lanes.load(a + i) + lanes.load(b + i)); });
}

void scale(const float* x, float* y, std::int64_t n, double factor) {
  const F32 f = set(static_cast<float>(factor));
  for_lanes(
      n, [&](std::int64_t i, auto lanes) QKV_BODY { lanes.store(y + i, f * lanes.load(x + i)); });
}

void add_scaled(const float* x, float* y, std::int64_t n, double factor) {
  const F32 f = set(static_cast<float>(factor));
  for_lanes(n, [&](std::int64_t i, auto lanes)
                   QKV_BODY { lanes.store(y + i, fma(f, lanes.load(x + i), lanes.load(y + i))); });
}

void maximum(const float* x, float* y, std::int64_t n) {
  for_lanes(n, [&](std::int64_t i, auto lanes) QKV_BODY {
    const F32 a = lanes.load(x + i), b = lanes.load(y + i);
    lanes.store(y + i, select((a > b) | (a != a), a, b));
  });
}

void rotate(float* x, const Rotation<float>& p) {
  const F32 sign = set(static_cast<float>(p.sign));
  for (std::int64_t h = 0; h < p.heads; ++h, x += p.head_stride) {
    if (p.interleaved) {
      for_lanes(2 * p.half, [&](std::int64_t i, auto lanes) QKV_BODY {
        const F32 a = lanes.load(x + i), c = lanes.load(p.cosines + i),
                  s = sign * lanes.load(p.sines + i);
        lanes.store(x + i, fma(a, c, swap_pairs(a) * s));
      });
    } else {
      for_lanes(p.half, [&](std::int64_t i, auto lanes) QKV_BODY {
        const F32 a = lanes.load(x + i), b = lanes.load(x + p.half + i);
        const F32 c = lanes.load(p.cosines + i), s = sign * lanes.load(p.sines + i);
        lanes.store(x + i, fnma(b, s, a * c));
        lanes.store(x + p.half + i, fma(a, s, b * c));
      });
    }
  }
}

// Eight sums in double, so that the additions do not wait for each other.
double sum_of_squares(const float* x, std::int64_t n) {
  constexpr int kSums = 8, kHalf = kLanes / 2;
  F64 sums[kSums];
  for (int k = 0; k < kSums; ++k) sums[k] = zero64();
  std::int64_t i = 0;
  for (; i + kSums * kHalf <= n; i += kSums * kHalf) {
    for (int j = 0; j < kSums * kHalf; j += kLanes) fetch(x + i + fetch_ahead(1), j);
#pragma GCC unroll 8
    for (int k = 0; k < kSums; ++k) {
      const F64 a = load_wide(x + i + k * kHalf);
      sums[k] = fma(a, a, sums[k]);
    }
  }
  for (; i < n; i += kLanes) {
    const F32 a = load(x + i, first_lanes(n - i));
    sums[0] = fma(widen_low(a), widen_low(a), sums[0]);
    sums[1] = fma(widen_high(a), widen_high(a), sums[1]);
  }
  return sum(((sums[0] + sums[1]) + (sums[2] + sums[3])) +
             ((sums[4] + sums[5]) + (sums[6] + sums[7])));
}

std::int64_t find_non_finite(const float* x, std::int64_t n) {
  for (std::int64_t i = 0; i < n; i += kLanes) {
    const F32 a = i + kLanes <= n ? load(x + i) : load(x + i, first_lanes(n - i));
    const std::uint32_t bad = bits(a - a != zero());  // inf - inf and NaN - NaN are NaN
    if (bad != 0) return i + __builtin_ctz(bad);
  }
  return -1;
}

void adamw(const AdamWChunk<float>& p) {
  const F32 beta1 = set(static_cast<float>(p.beta1)), rest1 = set(static_cast<float>(1 - p.beta1));
  const F32 beta2 = set(static_cast<float>(p.beta2)), rest2 = set(static_cast<float>(1 - p.beta2));
  const F32 decay = set(static_cast<float>(p.decay)), rate = set(static_cast<float>(p.rate));
  const F32 root = set(static_cast<float>(p.inverse_root)), eps = set(static_cast<float>(p.eps));
  const F32 factor = set(static_cast<float>(p.scale));
  for_lanes(p.n, [&](std::int64_t i, auto lanes) QKV_BODY {
    const F32 g = factor * lanes.load(p.g + i);
    // Rows without gradients decay: below 1e-36 to zero at once, denormals are slow.
    const F32 average = fma(beta1, lanes.load(p.m + i), rest1 * g);
    const F32 m = keep(~(abs(average) < set(1e-36f)), average);
    const F32 v = fma(beta2, lanes.load(p.v + i), rest2 * g * g);
    lanes.store(p.m + i, m);
    lanes.store(p.v + i, v);
    const F32 step = rate * m / fma(sqrt(v), root, eps);
    lanes.store(p.theta + i, decay * lanes.load(p.theta + i) - step);
    if (p.zero) lanes.store(p.g + i, zero());
  });
}

void sgd(const SgdChunk<float>& p) {
  const F32 rate = set(static_cast<float>(p.rate)), momentum = set(static_cast<float>(p.momentum));
  const F32 decay = set(static_cast<float>(p.decay)), factor = set(static_cast<float>(p.scale));
  for_lanes(p.n, [&](std::int64_t i, auto lanes) QKV_BODY {
    const F32 theta = lanes.load(p.theta + i);
    F32 d = fma(decay, theta, factor * lanes.load(p.g + i));
    if (p.m) {
      d = fma(momentum, lanes.load(p.m + i), d);
      lanes.store(p.m + i, d);
    }
    lanes.store(p.theta + i, fnma(rate, d, theta));
  });
}

}  // namespace

const VectorKernels<float> kVector = {
    add, scale, add_scaled, maximum, rotate, sum_of_squares, find_non_finite, adamw, sgd};

}  // namespace qkv::inline v0::kernels::QKV_ISA
