#include "kernels/softmax.h"

#include "kernels/simd/vec.h"

namespace qkv::inline v0::kernels::QKV_ISA {
extern const SoftmaxKernels<float> kSoftmax;
namespace {

constexpr float kNegativeInfinity = -__builtin_inff();

float row_maximum(const float* x, std::int64_t width) {
  F32 a = set(kNegativeInfinity), b = a;
  std::int64_t j = 0;
  for (; j + 2 * kLanes <= width; j += 2 * kLanes) {
    a = max(load(x + j), a);
    b = max(load(x + j + kLanes), b);
  }
  for (; j + kLanes <= width; j += kLanes) a = max(load(x + j), a);
  if (j < width) {
    const Mask m = first_lanes(width - j);
    b = max(select(m, load(x + j, m), b), b);
  }
  return hmax(max(a, b));
}

// y = exp(x - shift); returns the sum. y may be x, or null.
float exponentials(const float* x, float* y, std::int64_t width, float shift) {
  const F32 offset = set(shift);
  F32 total = zero();
  for_lanes(width, [&](std::int64_t j, auto lanes) QKV_BODY {
    const F32 e = lanes.only(exp(lanes.load(x + j) - offset));
    if (y) lanes.store(y + j, e);
    total = total + e;
  });
  return sum(total);
}

// NaN in a row makes its sum NaN, and so the whole row.
void forward(const float* x, float* y, std::int64_t rows, std::int64_t width) {
  for (std::int64_t r = 0; r < rows; ++r, x += width, y += width) {
    const float largest = row_maximum(x, width);
    if (largest == kNegativeInfinity) {  // all -inf, or NaN beside them
      F32 total = zero();
      for_lanes(width, [&](std::int64_t j, auto lanes)
                           QKV_BODY { total = total + lanes.only(exp(lanes.load(x + j))); });
      const F32 value = set(sum(total));  // 0, or NaN
      for_lanes(width, [&](std::int64_t j, auto lanes) QKV_BODY { lanes.store(y + j, value); });
      continue;
    }
    const F32 inverse = set(1 / exponentials(x, y, width, largest));
    for_lanes(width, [&](std::int64_t j, auto lanes)
                         QKV_BODY { lanes.store(y + j, inverse * lanes.load(y + j)); });
  }
}

void backward(const float* dy, const float* y, float* dx, std::int64_t rows, std::int64_t width) {
  for (std::int64_t r = 0; r < rows; ++r, dy += width, y += width, dx += width) {
    F32 total = zero();
    for_lanes(width, [&](std::int64_t j, auto lanes)
                         QKV_BODY { total = fma(lanes.load(dy + j), lanes.load(y + j), total); });
    const F32 dot = set(sum(total));
    for_lanes(width, [&](std::int64_t j, auto lanes) QKV_BODY {
      lanes.store(dx + j, lanes.load(y + j) * (lanes.load(dy + j) - dot));
    });
  }
}

// Whether `target` is the first place of the largest value.
bool is_first_maximum(const float* x, std::int64_t target, float largest) {
  if (x[target] != largest) return false;
  for (std::int64_t j = 0; j < target; ++j)
    if (x[j] == largest) return false;
  return true;
}

double sum_of(const float* x, std::int64_t width) {
  F64 low = zero64(), high = zero64();
  for_lanes(width, [&](std::int64_t j, auto lanes) QKV_BODY {
    const F32 a = lanes.load(x + j);
    low = low + widen_low(a);
    high = high + widen_high(a);
  });
  return sum(low + high);
}

void loss_row(const CrossEntropyRows<float>& p, std::int64_t r, CrossEntropySums& sums) {
  const float* x = p.logits + r * p.width;
  float* d = p.dlogits ? p.dlogits + r * p.width : nullptr;
  const std::int64_t target = p.targets[r];
  const float largest = row_maximum(x, p.width), total = exponentials(x, d, p.width, largest);
  const double log_sum = static_cast<double>(largest) + __builtin_log(static_cast<double>(total));
  double loss = (1 - p.smoothing) * (log_sum - static_cast<double>(x[target]));
  if (p.smoothing > 0)
    loss += p.smoothing * (log_sum - sum_of(x, p.width) / static_cast<double>(p.width));
  sums.loss += loss;
  ++sums.counted;
  sums.correct += is_first_maximum(x, target, largest) ? 1 : 0;
  if (!d) return;
  const F32 inverse = set(1 / total),
            uniform = set(static_cast<float>(p.smoothing / static_cast<double>(p.width)));
  const float probability = d[target] / total;
  for_lanes(p.width, [&](std::int64_t j, auto lanes) QKV_BODY {
    lanes.store(d + j, fma(inverse, lanes.load(d + j), zero() - uniform));
  });
  d[target] = probability -
              static_cast<float>(1 - p.smoothing + p.smoothing / static_cast<double>(p.width));
}

CrossEntropySums cross_entropy(const CrossEntropyRows<float>& p) {
  CrossEntropySums sums;
  for (std::int64_t r = 0; r < p.rows; ++r) {
    if (p.targets[r] != p.ignore_index) {
      loss_row(p, r, sums);
    } else if (p.dlogits) {
      for_lanes(p.width, [&](std::int64_t j, auto lanes)
                             QKV_BODY { lanes.store(p.dlogits + r * p.width + j, zero()); });
    }
  }
  return sums;
}

}  // namespace

const SoftmaxKernels<float> kSoftmax = {forward, backward, cross_entropy};

}  // namespace qkv::inline v0::kernels::QKV_ISA
