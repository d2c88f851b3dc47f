// The vector wrappers and elementary functions, on every instruction set that may run here.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "base/cpu.h"
#include "base/random.h"
#include "kernels/simd/probe.h"

using namespace qkv;
using kernels::VectorProbe;

namespace {

struct Named {
  const char* name;
  Isa needs;
  const VectorProbe* probe;
};
constexpr Named kBuilt[] = {
    {"generic", Isa::kGeneric, &kernels::generic::kVectorProbe},
#if defined(__x86_64__)
    {"avx2", Isa::kAvx2, &kernels::avx2::kVectorProbe},
    {"avx512", Isa::kAvx512, &kernels::avx512::kVectorProbe},
#endif
};

std::vector<Named> all_that_run() {
  std::vector<Named> all;
  for (const Named& built : kBuilt)
    if (built.needs <= active_isa()) all.push_back(built);
  return all;
}

class Vec : public ::testing::TestWithParam<Named> {
 protected:
  const VectorProbe& probe() const { return *GetParam().probe; }
};

using Function = void (*)(const float*, float*, std::int64_t);

// Distance in units of the last place of the right value's binade (denormals: of the smallest
// denormal).
double ulps(float got, double right) {
  if (std::isnan(right)) return std::isnan(got) ? 0 : INFINITY;
  const double rounded = static_cast<double>(static_cast<float>(right));
  if (static_cast<double>(got) == rounded) return 0;
  if (!std::isfinite(got) || !std::isfinite(rounded)) return INFINITY;
  const int exponent = std::max(std::ilogb(right), -126);
  return std::fabs(static_cast<double>(got) - right) / std::ldexp(1.0, exponent - 23);
}

// Floats of [low, high] in equal steps of their bit patterns, negative ones included, ends
// included.
std::vector<float> floats_between(float low, float high) {
  std::vector<float> values = {low, high, 0.0f, -0.0f};
  for (std::uint64_t u = 0; u < (std::uint64_t{1} << 32); u += 5003) {
    const float x = std::bit_cast<float>(static_cast<std::uint32_t>(u));
    if (x >= low && x <= high) values.push_back(x);
  }
  for (int i = 0; i <= 200000; ++i)
    values.push_back(low + (high - low) * static_cast<float>(i) / 200000.0f);
  while (values.size() % 16 != 0) values.push_back(low);
  return values;
}

double worst_ulps(Function f, double (*right)(double), float low, float high) {
  const std::vector<float> x = floats_between(low, high);
  std::vector<float> y(x.size());
  f(x.data(), y.data(), static_cast<std::int64_t>(x.size()));
  double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i)
    worst = std::max(worst, ulps(y[i], right(static_cast<double>(x[i]))));
  return worst;
}

double right_sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double right_tail(double x) { return 0.5 * std::erfc(std::fabs(x) * 0.70710678118654752440); }

float apply(Function f, float x) {
  float in[16], out[16];
  std::fill_n(in, 16, x);
  f(in, out, 16);
  for (int i = 1; i < 16; ++i)
    EXPECT_EQ(std::bit_cast<std::uint32_t>(out[0]), std::bit_cast<std::uint32_t>(out[i]));
  return out[0];
}

}  // namespace

TEST_P(Vec, exp_is_within_2_ulp) {
  EXPECT_LE(worst_ulps(probe().exp, std::exp, -104, 88.72f), 2.0);
}

TEST_P(Vec, exp2_is_within_2_ulp) {
  EXPECT_LE(worst_ulps(probe().exp2, std::exp2, -150, 127.99f), 2.0);
}

TEST_P(Vec, exp2_short_is_within_4_ulp) {
  EXPECT_LE(worst_ulps(probe().exp2_short, std::exp2, -150, 127.99f), 4.0);
}

TEST_P(Vec, sigmoid_is_within_4_ulp) {
  EXPECT_LE(worst_ulps(probe().sigmoid, right_sigmoid, -87, 87), 4.0);
}

TEST_P(Vec, tanh_is_within_4_ulp) { EXPECT_LE(worst_ulps(probe().tanh, std::tanh, -30, 30), 4.0); }

TEST_P(Vec, normal_tail_is_within_2e_7) {
  const std::vector<float> x = floats_between(-30, 30);
  std::vector<float> y(x.size());
  probe().normal_tail(x.data(), y.data(), static_cast<std::int64_t>(x.size()));
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double wide = static_cast<double>(x[i]), right = right_tail(wide);
    ASSERT_NEAR(static_cast<double>(y[i]), right, 2e-7) << x[i];
    if (std::fabs(x[i]) <= 12.5f) {
      ASSERT_NEAR(static_cast<double>(y[i]) / right, 1, 4e-7 * (1 + wide * wide)) << x[i];
    }
  }
}

TEST_P(Vec, special_values) {
  const float infinity = std::numeric_limits<float>::infinity(),
              nan = std::numeric_limits<float>::quiet_NaN();
  for (const Function f : {probe().exp, probe().exp2, probe().exp2_short}) {
    EXPECT_EQ(apply(f, -infinity), 0.0f);
    EXPECT_EQ(apply(f, -1000.0f), 0.0f);
    EXPECT_EQ(apply(f, infinity), infinity);
    EXPECT_EQ(apply(f, 1000.0f), infinity);
    EXPECT_EQ(apply(f, 0.0f), 1.0f);
    EXPECT_EQ(apply(f, -0.0f), 1.0f);
    EXPECT_TRUE(std::isnan(apply(f, nan)));
  }
  EXPECT_EQ(apply(probe().exp, 89.0f), infinity);
  EXPECT_GT(apply(probe().exp, -103.0f), 0.0f);  // a denormal
  EXPECT_LT(apply(probe().sigmoid, -infinity), 2e-38f);
  EXPECT_EQ(apply(probe().sigmoid, infinity), 1.0f);
  EXPECT_TRUE(std::isnan(apply(probe().sigmoid, nan)));
  EXPECT_EQ(apply(probe().tanh, infinity), 1.0f);
  EXPECT_EQ(apply(probe().tanh, -infinity), -1.0f);
  EXPECT_TRUE(std::isnan(apply(probe().tanh, nan)));
  EXPECT_LT(apply(probe().normal_tail, infinity), 5e-36f);
  EXPECT_LT(apply(probe().normal_tail, -infinity), 5e-36f);
  EXPECT_EQ(apply(probe().normal_tail, 0.0f), 0.5f);
  EXPECT_TRUE(std::isnan(apply(probe().normal_tail, nan)));
}

TEST_P(Vec, round_goes_to_even) {
  for (const float x :
       {0.5f, 1.5f, 2.5f, -0.5f, -1.5f, 0.49999997f, 8388607.5f, 8388609.0f, 1e20f, -3.7f, 100.5f})
    EXPECT_EQ(apply(probe().round, x), std::nearbyint(x)) << x;
}

TEST_P(Vec, dropout_draws_the_numbers_of_philox) {
  const int channels = 4 * probe().lanes;  // of a draw
  Random random(5);
  for (int repeat = 0; repeat < 50; ++repeat) {
    const std::uint64_t key = random.next_u64();
    const std::uint32_t block = random.next_u32() % 1000, token = random.next_u32(),
                        sample = random.next_u32(), step = random.next_u32();
    const std::uint32_t threshold = random.next_u32() % 65536;
    std::uint64_t kept[2];
    probe().dropout_keep(key, block, token, sample, step, threshold, kept);
    for (int c = 0; c < 2 * channels; ++c) {
      const PhiloxBlock numbers =
          philox(key, {block + static_cast<std::uint32_t>(c / 8), token, sample, step});
      const std::uint32_t number =
          (numbers[static_cast<std::size_t>(c % 8 / 2)] >> (c % 2 * 16)) & 0xFFFF;
      ASSERT_EQ((kept[c / channels] >> (c % channels)) & 1, number < threshold ? 0u : 1u)
          << "channel " << c;
    }
  }
}

TEST_P(Vec, masked_lanes_are_left_alone) {
  const int lanes = probe().lanes;
  for (int n = 0; n <= lanes; ++n) {
    std::vector<float> x(static_cast<std::size_t>(lanes), std::numeric_limits<float>::quiet_NaN());
    std::vector<float> y(static_cast<std::size_t>(lanes), -7);
    float right = 0;
    for (int i = 0; i < n; ++i)
      right += x[static_cast<std::size_t>(i)] = static_cast<float>(i * i - 3);
    float total = 0, largest = 0, smallest = 0;
    probe().reduce(x.data(), n, &total, &largest, &smallest);
    EXPECT_EQ(total, right);
    if (n > 0) {
      EXPECT_EQ(largest, *std::max_element(x.begin(), x.begin() + n));
      EXPECT_EQ(smallest, *std::min_element(x.begin(), x.begin() + n));
    }
    probe().copy_some(x.data(), y.data(), n);
    for (int i = 0; i < lanes; ++i)
      EXPECT_EQ(y[static_cast<std::size_t>(i)], i < n ? x[static_cast<std::size_t>(i)] : -7.0f);
  }
}

TEST_P(Vec, blocks_are_transposed) {
  const auto lanes = static_cast<std::size_t>(probe().lanes);
  std::vector<float> x(4 * lanes), y(4 * lanes);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i);
  probe().transpose(x.data(), y.data());
  for (std::size_t i = 0; i < 4; ++i)
    for (std::size_t j = 0; j < lanes; ++j) EXPECT_EQ(y[j * 4 + i], x[i * lanes + j]);
}

INSTANTIATE_TEST_SUITE_P(Isa, Vec, ::testing::ValuesIn(all_that_run()),
                         [](const auto& tested) { return std::string(tested.param.name); });
