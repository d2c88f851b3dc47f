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

// y = exp(x - shift) for a shift that no x exceeds; returns the sum. y may be x, or null. What lies
// `ahead` of x is read soon.
float exponentials(const float* x, float* y, std::int64_t width, float shift, std::int64_t ahead) {
  const F32 offset = set(shift);
  return sum(sum_lanes(width, [&](std::int64_t j, auto lanes, F32& total) QKV_BODY {
    fetch(x + ahead, j);
    const F32 e = lanes.only(exp_below(lanes.load(x + j) - offset));
    if (y) lanes.store(y + j, e);
    total = total + e;
  }));
}

// Rows go through each step together: the steps of one row wait for each other, those of different
// rows do not. As many as stay in the first-level cache.
constexpr std::int64_t kRowsTogether = 16;
QKV_INLINE std::int64_t rows_together(std::int64_t width) {
  const std::int64_t fitting = width < 1 ? 1 : 4096 / width;
  return fitting < 1 ? 1 : fitting > kRowsTogether ? kRowsTogether : fitting;
}

// All -inf, or NaN beside them: zeros or NaN.
void hidden_row(const float* x, float* y, std::int64_t width) {
  F32 total = zero();
  for_lanes(width, [&](std::int64_t j, auto lanes)
                       QKV_BODY { total = total + lanes.only(exp(lanes.load(x + j))); });
  const F32 value = set(sum(total));
  for_lanes(width, [&](std::int64_t j, auto lanes) QKV_BODY { lanes.store(y + j, value); });
}

// NaN in a row makes its sum NaN, and so the whole row.
void forward(const float* x, float* y, std::int64_t rows, std::int64_t width) {
  const std::int64_t together = rows_together(width);
  for (std::int64_t first = 0; first < rows; first += together) {
    const std::int64_t count = rows - first < together ? rows - first : together;
    const float* from = x + first * width;
    float *to = y + first * width, value[kRowsTogether];
    for (std::int64_t r = 0; r < count; ++r) value[r] = row_maximum(from + r * width, width);
    for (std::int64_t r = 0; r < count; ++r) {
      if (value[r] == kNegativeInfinity) {
        hidden_row(from + r * width, to + r * width, width);
        value[r] = 1;
      } else {
        value[r] =
            1 / exponentials(from + r * width, to + r * width, width, value[r], together * width);
      }
    }
    for (std::int64_t r = 0; r < count; ++r) {
      float* row = to + r * width;
      const F32 inverse = set(value[r]);
      for_lanes(width, [&](std::int64_t j, auto lanes)
                           QKV_BODY { lanes.store(row + j, inverse * lanes.load(row + j)); });
    }
  }
}

void backward(const float* dy, const float* y, float* dx, std::int64_t rows, std::int64_t width) {
  for (std::int64_t r = 0; r < rows; ++r, dy += width, y += width, dx += width) {
    const F32 dot = set(sum(sum_lanes(width, [&](std::int64_t j, auto lanes, F32& total) QKV_BODY {
      total = fma(lanes.load(dy + j), lanes.load(y + j), total);
    })));
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

// As `exponentials`, and the sum of x - shift.
struct ExponentialSums {
  float total;
  double distance;
};
ExponentialSums exponentials_and_distance(const float* x, float* y, std::int64_t width, float shift,
                                          std::int64_t ahead) {
  const F32 offset = set(shift);
  F32 distances[2] = {zero(), zero()};
  const F32 total = sum_lanes(width, [&](std::int64_t j, auto lanes, F32& part) QKV_BODY {
    fetch(x + ahead, j);
    const F32 distance = lanes.load(x + j) - offset;
    const F32 e = lanes.only(exp_below(distance));
    if (y) lanes.store(y + j, e);
    part = part + e;
    F32& sum_here = distances[j / kLanes % 2];
    sum_here = sum_here + lanes.only(distance);
  });
  const F32 distance = distances[0] + distances[1];
  return {sum(total), sum(widen_low(distance) + widen_high(distance))};
}

// What one row passes from step to step.
struct LossRow {
  const float* x;
  float* d;  // null: no gradient
  std::int64_t target;
  float largest, total;
  double distance;  // sum of x - largest; only with label smoothing
};

// log sum e^x is largest + log(total), so nothing large cancels.
double loss_of(const CrossEntropyRows<float>& p, const LossRow& row) {
  const double log_total = __builtin_log(static_cast<double>(row.total));
  const double below = static_cast<double>(row.x[row.target]) - static_cast<double>(row.largest);
  const double loss = (1 - p.smoothing) * (log_total - below);
  if (p.smoothing <= 0) return loss;
  return loss + p.smoothing * (log_total - row.distance / static_cast<double>(p.width));
}

void logit_gradient(const CrossEntropyRows<float>& p, const LossRow& row, double uniform) {
  const F32 inverse = set(1 / row.total), share = set(static_cast<float>(uniform));
  const float probability = row.d[row.target] / row.total;
  for_lanes(p.width, [&](std::int64_t j, auto lanes) QKV_BODY {
    lanes.store(row.d + j, fma(inverse, lanes.load(row.d + j), zero() - share));
  });
  row.d[row.target] = probability - static_cast<float>(1 - p.smoothing + uniform);
}

// Rows first .. first + count; at most kRowsTogether.
void cross_entropy_rows(const CrossEntropyRows<float>& p, std::int64_t first, std::int64_t count,
                        CrossEntropySums& sums) {
  LossRow rows[kRowsTogether];
  const double uniform = p.smoothing / static_cast<double>(p.width);
  std::int64_t used = 0;
  for (std::int64_t r = first; r < first + count; ++r) {
    float* d = p.dlogits ? p.dlogits + r * p.width : nullptr;
    if (p.targets[r] != p.ignore_index) {
      rows[used++] = {p.logits + r * p.width, d, p.targets[r], 0, 0, 0};
    } else if (d) {
      for_lanes(p.width, [&](std::int64_t j, auto lanes) QKV_BODY { lanes.store(d + j, zero()); });
    }
  }
  const std::int64_t ahead = count * p.width;
  for (std::int64_t i = 0; i < used; ++i) rows[i].largest = row_maximum(rows[i].x, p.width);
  for (std::int64_t i = 0; i < used; ++i) {
    LossRow& row = rows[i];
    if (p.smoothing > 0) {
      const ExponentialSums s =
          exponentials_and_distance(row.x, row.d, p.width, row.largest, ahead);
      row.total = s.total;
      row.distance = s.distance;
    } else {
      row.total = exponentials(row.x, row.d, p.width, row.largest, ahead);
    }
  }
  for (std::int64_t i = 0; i < used; ++i) sums.loss += loss_of(p, rows[i]);
  for (std::int64_t i = 0; i < used; ++i) {
    ++sums.counted;
    sums.correct += is_first_maximum(rows[i].x, rows[i].target, rows[i].largest) ? 1 : 0;
    if (rows[i].d) logit_gradient(p, rows[i], uniform);
  }
}

CrossEntropySums cross_entropy(const CrossEntropyRows<float>& p) {
  CrossEntropySums sums;
  const std::int64_t together = rows_together(p.width);
  for (std::int64_t r = 0; r < p.rows; r += together)
    cross_entropy_rows(p, r, p.rows - r < together ? p.rows - r : together, sums);
  return sums;
}

}  // namespace

const SoftmaxKernels<float> kSoftmax = {forward, backward, cross_entropy};

}  // namespace qkv::inline v0::kernels::QKV_ISA
