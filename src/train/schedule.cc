#include "train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace qkv::inline v0::train {

const char* schedule_name(ScheduleKind kind) {
  switch (kind) {
    case ScheduleKind::kCosine:
      return "cosine";
    case ScheduleKind::kLinear:
      return "linear";
    case ScheduleKind::kConstant:
      return "constant";
    case ScheduleKind::kStep:
      return "step";
    case ScheduleKind::kInverseSqrt:
      return "inverse_sqrt";
  }
  return "unknown";
}

double schedule_at(const Schedule& s, std::int64_t t) {
  if (t < s.warmup) return s.peak * static_cast<double>(t) / static_cast<double>(s.warmup);
  const auto after = static_cast<double>(t - s.warmup);
  const auto span = static_cast<double>(std::max<std::int64_t>(s.total - s.warmup, 1));
  const double p = t == s.warmup ? 0 : std::min(after / span, 1.0);
  switch (s.kind) {
    case ScheduleKind::kCosine:
      return p >= 1 ? s.floor
                    : s.floor + (s.peak - s.floor) * 0.5 * (1 + std::cos(std::numbers::pi * p));
    case ScheduleKind::kLinear:
      return s.floor + (s.peak - s.floor) * (1 - p);
    case ScheduleKind::kConstant:
      return s.peak;
    case ScheduleKind::kStep: {
      const std::int64_t cuts = (t - s.warmup) / std::max<std::int64_t>(s.step_size, 1);
      return std::max(s.floor, s.peak * std::pow(s.step_gamma, static_cast<double>(cuts)));
    }
    case ScheduleKind::kInverseSqrt: {
      const auto w = static_cast<double>(std::max<std::int64_t>(s.warmup, 1));
      return std::max(s.floor, s.peak * std::sqrt(w / (after + w)));
    }
  }
  return s.peak;
}

double learning_rate(const Schedule& schedule, std::int64_t update) {
  return schedule_at(schedule, schedule.warmup > 0 ? update : update - 1);
}

}  // namespace qkv::inline v0::train
