// Learning-rate schedules.
#include "train/schedule.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

using namespace qkv;
using train::learning_rate;
using train::Schedule;
using train::schedule_at;
using train::ScheduleKind;

namespace {

const std::vector<double> kTable = {0,       .25, .5,      .75,     1,       .961940, .853553,
                                    .691342, .5,  .308658, .146447, .038060, 0,       0};

int peaks(const Schedule& schedule) {
  int count = 0;
  for (std::int64_t n = 1; n <= schedule.total; ++n)
    count += learning_rate(schedule, n) == schedule.peak;
  return count;
}

}  // namespace

TEST(Schedule, b32_warm_up_and_cosine_follow_the_table) {
  const Schedule schedule{.peak = 1, .warmup = 4, .total = 12};
  for (std::size_t t = 0; t < kTable.size(); ++t) {
    EXPECT_NEAR(schedule_at(schedule, static_cast<std::int64_t>(t)), kTable[t], 1e-6) << t;
  }
  // Updates are numbered from 1, so the first one does move.
  for (std::int64_t n = 1; n <= 12; ++n)
    EXPECT_EQ(learning_rate(schedule, n), schedule_at(schedule, n));
  EXPECT_EQ(learning_rate(schedule, 13), 0);
  EXPECT_EQ(learning_rate(schedule, 1'000'000), 0);
}

TEST(Schedule, b32_the_peak_comes_exactly_once_whatever_the_warm_up) {
  for (const auto kind :
       {ScheduleKind::kCosine, ScheduleKind::kLinear, ScheduleKind::kInverseSqrt}) {
    for (const std::int64_t warmup : {0, 1, 4, 12}) {
      EXPECT_EQ(peaks({.kind = kind, .peak = 1, .warmup = warmup, .total = 12}), 1) << warmup;
    }
    EXPECT_EQ(peaks({.kind = kind, .peak = 1, .warmup = 0, .total = 1}), 1);
    EXPECT_EQ(peaks({.kind = kind, .peak = 1, .warmup = 1, .total = 1}), 1);
  }
}

TEST(Schedule, b32_no_value_is_nan_or_negative_at_the_ends) {
  for (const auto kind : {ScheduleKind::kCosine, ScheduleKind::kLinear, ScheduleKind::kConstant,
                          ScheduleKind::kStep, ScheduleKind::kInverseSqrt}) {
    for (const std::int64_t warmup : {0, 1, 3}) {
      for (const std::int64_t total : {1, 3, 4}) {
        const Schedule schedule{.kind = kind, .peak = 2, .warmup = warmup, .total = total};
        for (std::int64_t n = 1; n < 9; ++n) {
          const double rate = learning_rate(schedule, n);
          EXPECT_TRUE(std::isfinite(rate) && rate >= 0 && rate <= 2) << n;
        }
        EXPECT_GT(learning_rate(schedule, 1), 0);
      }
    }
  }
}

TEST(Schedule, the_floor_is_where_it_ends) {
  Schedule schedule{.peak = 1, .floor = 0.1, .warmup = 2, .total = 10};
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 10), 0.1);
  schedule.kind = ScheduleKind::kLinear;
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 6), 0.55);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 10), 0.1);
}

TEST(Schedule, step_cuts_after_every_so_many_updates) {
  const Schedule schedule{.kind = ScheduleKind::kStep,
                          .peak = 1,
                          .warmup = 0,
                          .total = 100,
                          .step_size = 10,
                          .step_gamma = 0.5};
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 10), 1);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 11), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 21), 0.25);
}

TEST(Schedule, inverse_square_root_falls_with_the_root) {
  const Schedule schedule{
      .kind = ScheduleKind::kInverseSqrt, .peak = 1, .warmup = 100, .total = 1000};
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 100), 1);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 400), 0.5);
}
