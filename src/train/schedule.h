// Learning-rate schedules.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace qkv::inline v0::train {

enum class ScheduleKind { kCosine, kLinear, kConstant, kStep, kInverseSqrt };
const char* schedule_name(ScheduleKind kind);

struct Schedule {
  ScheduleKind kind = ScheduleKind::kCosine;
  double peak = 1e-3, floor = 0;
  std::int64_t warmup = 0, total = 1;  // updates
  std::int64_t step_size = 1;          // kStep: updates between two cuts after the warm-up
  double step_gamma = 0.1;             // kStep: what the rate is multiplied by
};

// Rate at time t: peak * t / warmup during the warm-up; then, with p = (t - warmup) / (total -
// warmup),
//   cosine        floor + (peak - floor) (1 + cos(pi p)) / 2        (Loshchilov and Hutter 2017)
//   linear        floor + (peak - floor) (1 - p)
//   constant      peak
//   step          peak * step_gamma^floor((t - warmup) / step_size), not below floor
//   inverse_sqrt  peak * sqrt(w / (t - warmup + w)), w = max(warmup, 1), not below floor  (Vaswani
//   et al. 2017)
// Cosine and linear stay at the floor for t >= total.
double schedule_at(const Schedule& schedule, std::int64_t t);

// Rate of update n, numbered from 1: schedule_at(n) after a warm-up, schedule_at(n - 1) without
// one. So no update has the rate 0 at the start, and exactly one has the peak (for schedules that
// fall at every step).
double learning_rate(const Schedule& schedule, std::int64_t update);

}  // namespace qkv::inline v0::train
