#include "base/random.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <set>
#include <vector>

#include <gtest/gtest.h>

namespace {
using namespace qkv;

// The known answers of the authors (Random123, kat_vectors).
TEST(Random, philox_known_answers) {
  EXPECT_EQ(philox(0, {0, 0, 0, 0}), (PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const std::uint32_t ones = 0xFFFFFFFF;
  EXPECT_EQ(philox(~std::uint64_t{0}, {ones, ones, ones, ones}),
            (PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox(0x299f31d0a4093822ull, {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}),
            (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Random, streams_repeat_and_differ) {
  Random a(1), b(1), other_seed(2), other_stream(1, 1);
  std::set<std::uint64_t> values;
  for (int i = 0; i < 100; ++i) {
    const std::uint64_t x = a.next_u64();
    EXPECT_EQ(x, b.next_u64());
    values.insert({x, other_seed.next_u64(), other_stream.next_u64()});
  }
  EXPECT_EQ(values.size(), 300u);
  Random copy = a;
  EXPECT_EQ(copy.next_u32(), a.next_u32());
}

TEST(Random, uniform_has_mean_variance_and_bounds) {
  Random random(3);
  constexpr int kCount = 200000;
  double sum = 0, squares = 0;
  for (int i = 0; i < kCount; ++i) {
    const double x = random.uniform();
    ASSERT_TRUE(x >= 0 && x < 1);
    sum += x;
    squares += x * x;
  }
  const double mean = sum / kCount;
  EXPECT_NEAR(mean, 0.5, 5 * std::sqrt(1.0 / 12 / kCount));  // five sigma
  EXPECT_NEAR(squares / kCount - mean * mean, 1.0 / 12, 0.001);
}

TEST(Random, normal_has_mean_variance_and_tails) {
  Random random(4);
  constexpr int kCount = 200000;
  double sum = 0, squares = 0;
  int beyond_two = 0;
  for (int i = 0; i < kCount; ++i) {
    const double x = random.normal();
    ASSERT_TRUE(std::isfinite(x));
    sum += x;
    squares += x * x;
    beyond_two += std::abs(x) > 2;
  }
  EXPECT_NEAR(sum / kCount, 0, 5 / std::sqrt(kCount));
  EXPECT_NEAR(squares / kCount, 1, 5 * std::sqrt(2.0 / kCount));
  EXPECT_NEAR(beyond_two / double{kCount}, 0.0455, 0.0025);
}

TEST(Random, below_is_uniform) {
  Random random(5);
  std::array<int, 7> counts{};
  for (int i = 0; i < 70000; ++i) ++counts.at(random.below(7));
  for (const int count : counts) EXPECT_NEAR(count, 10000, 500);
  EXPECT_EQ(random.below(1), 0u);
  const std::uint64_t huge = (std::uint64_t{1} << 63) + 1;
  for (int i = 0; i < 100; ++i) EXPECT_LT(random.below(huge), huge);
}

TEST(Random, shuffle_is_a_uniform_permutation) {
  Random random(6);
  std::array<int, 6> first_place{};
  for (int round = 0; round < 6000; ++round) {
    std::vector<int> values(6);
    std::iota(values.begin(), values.end(), 0);
    random.shuffle(values.begin(), values.end());
    ++first_place.at(static_cast<std::size_t>(values[0]));
    std::sort(values.begin(), values.end());
    for (int i = 0; i < 6; ++i) ASSERT_EQ(values[static_cast<std::size_t>(i)], i);
  }
  for (const int count : first_place) EXPECT_NEAR(count, 1000, 160);
  std::vector<int> none;
  random.shuffle(none.begin(), none.end());
  EXPECT_TRUE(none.empty());
}

TEST(Random, hashes_spread) {
  std::set<std::uint64_t> seen;
  for (std::uint64_t a = 0; a < 100; ++a) {
    for (std::uint64_t b = 0; b < 100; ++b) seen.insert(hash_pair(a, b));
  }
  EXPECT_EQ(seen.size(), 10000u);
  EXPECT_NE(hash_text("ab"), hash_text("ba"));
  EXPECT_NE(hash_text(""), hash_text(std::string_view("\0", 1)));
  // The values are part of saved splits: they must never change.
  EXPECT_EQ(hash_text("where is my card?"), 0x76e23d4ddbc522fdull);
  EXPECT_EQ(hash_pair(1, 2), 0x6871c08cbe75136cull);
  EXPECT_NE(hash_pair(1, 2), hash_pair(2, 1));
}

}  // namespace
