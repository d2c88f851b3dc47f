// Frequencies of scaled rotary positions, against the values of transformers 5.24 (head size 16).
#include <cmath>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "ops/rope.h"
#include "support/tensors.h"

using namespace qkv;
using namespace qkv::ops;

namespace {

void expect_frequencies(const RopeOptions& options, std::int64_t length,
                        const std::vector<double>& expected) {
  const std::vector<double> got = rope_frequencies(options, 16, length);
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i)
    EXPECT_NEAR(got[i], expected[i], 2e-6 * expected[i]) << i;
}

TEST(RopeScaling, linear) {
  RopeOptions o;
  o.scaling = {.kind = RopeScalingKind::kLinear, .factor = 4};
  expect_frequencies(
      o, 100,
      {0.25, 0.079056941, 0.025, 0.00790569466, 0.0025, 0.000790569466, 0.00025, 7.90569466e-05});
}

TEST(RopeScaling, dynamic_only_beyond_the_length_of_the_training) {
  RopeOptions o, plain;
  o.scaling = {.kind = RopeScalingKind::kDynamic, .factor = 2, .positions = 64};
  expect_frequencies(o, 100,
                     {1, 0.283945143, 0.0806248412, 0.0228930302, 0.00650036521, 0.001845747,
                      0.000524090894, 0.000148813066});
  EXPECT_EQ(rope_frequencies(o, 16, 64), rope_frequencies(plain, 16, 64));
}

TEST(RopeScaling, yarn_and_its_magnitude) {
  RopeOptions o;
  o.scaling = {.kind = RopeScalingKind::kYarn, .factor = 4, .positions = 64};
  expect_frequencies(
      o, 100,
      {1, 0.237170815, 0.05, 0.00790569466, 0.0025, 0.000790569466, 0.00025, 7.90569466e-05});
  EXPECT_NEAR(yarn_magnitude(4), 1.138629436111989, 1e-15);
  EXPECT_EQ(yarn_magnitude(1), 1);
}

TEST(RopeScaling, llama3) {
  RopeOptions o;
  o.base = 500000;
  o.scaling = {.kind = RopeScalingKind::kLlama3, .factor = 8, .positions = 64};
  expect_frequencies(o, 100,
                     {1, 0.079403013, 0.00470075384, 0.000911583134, 0.000176776681, 3.42810235e-05,
                      6.64786967e-06, 1.28917316e-06});
}

TEST(RopeScaling, partial_rotation_leaves_the_other_channels_alone) {
  const Tensor x = qkv::testing::random_tensor({5, 2, 16}, 1), whole = x.clone();
  const Tensor part = x.narrow(2, 0, 8).clone();
  const std::vector<std::int32_t> positions{0, 1, 7, 40000, 3};
  RopeOptions o;
  o.channels = 8;
  rope_inplace(whole, positions, o);
  rope_inplace(part, positions, {});
  EXPECT_TRUE(qkv::testing::same_bits(whole.narrow(2, 0, 8).contiguous(), part));
  EXPECT_TRUE(
      qkv::testing::same_bits(whole.narrow(2, 8, 8).contiguous(), x.narrow(2, 8, 8).contiguous()));
}

TEST(RopeScaling, magnitude_scales_and_the_gradient_turns_back) {
  const Tensor x = qkv::testing::random_tensor({3, 1, 4}, 2), y = x.clone();
  const std::vector<std::int32_t> positions{0, 5, 9};
  RopeOptions o;
  o.scaling.magnitude = 2;
  rope_inplace(y, positions, o);
  rope_inplace(y, positions, o, /*inverse=*/true);
  const std::vector<double> a = qkv::testing::values_of(x), b = qkv::testing::values_of(y);
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(b[i], 4 * a[i], 1e-12);
}

}  // namespace
