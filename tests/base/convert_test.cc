#include "base/convert.h"

#include <cmath>
#include <cstring>
#include <limits>

#include <gtest/gtest.h>

#include "base/random.h"

namespace {
using namespace qkv;

// The nearest number with `digits` significant bits, smallest exponent `low` and largest finite
// `top`, ties to even: by the definition, in double.
double rounded(double x, int digits, int low, double top) {
  if (x == 0 || !std::isfinite(x)) return x;
  int exponent = 0;
  (void)std::frexp(x, &exponent);
  const double step = std::ldexp(1.0, std::max(exponent - digits, low - digits + 1));
  const double result = std::nearbyint(x / step) * step;
  return std::abs(result) > top ? std::copysign(std::numeric_limits<double>::infinity(), x)
                                : result;
}
double rounded_half(float x) { return rounded(x, 11, -14, 65504); }
double rounded_brain(float x) { return rounded(x, 8, -126, 0x1.FEp127); }

TEST(Convert, every_half_survives_the_way_through_float) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const Float16 x{static_cast<std::uint16_t>(bits)};
    const float value = to_float(x);
    const bool nan = (bits & 0x7C00) == 0x7C00 && (bits & 0x3FF) != 0;
    ASSERT_EQ(std::isnan(value), nan) << bits;
    if (!nan) {
      ASSERT_EQ(to_float16(value).bits, bits);
    } else {
      ASSERT_TRUE(std::isnan(to_float(to_float16(value))));
    }
  }
}

TEST(Convert, every_brain_float_survives_the_way_through_float) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = to_float(BFloat16{static_cast<std::uint16_t>(bits)});
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(to_float(to_bfloat16(value)))) << bits;
    } else {
      ASSERT_EQ(to_bfloat16(value).bits, bits);
    }
  }
}

TEST(Convert, known_values) {
  EXPECT_EQ(to_float16(1.0F).bits, 0x3C00);
  EXPECT_EQ(to_float16(-2.0F).bits, 0xC000);
  EXPECT_EQ(to_float16(65504.0F).bits, 0x7BFF);
  EXPECT_EQ(to_float16(65519.996F).bits, 0x7BFF);
  EXPECT_EQ(to_float16(65520.0F).bits, 0x7C00);
  EXPECT_EQ(to_float16(0x1p-24F).bits, 1);
  EXPECT_EQ(to_float16(0x1p-25F).bits, 0);  // a tie: to even
  EXPECT_EQ(to_float16(0x1.8p-24F).bits, 2);
  EXPECT_EQ(to_float16(-0.0F).bits, 0x8000);
  EXPECT_EQ(to_float16(std::numeric_limits<float>::infinity()).bits, 0x7C00);
  EXPECT_EQ(to_bfloat16(1.0F).bits, 0x3F80);
  EXPECT_EQ(to_bfloat16(0x1.01p0F).bits, 0x3F80);  // a tie: to even
  EXPECT_EQ(to_bfloat16(0x1.03p0F).bits, 0x3F82);
  EXPECT_EQ(to_bfloat16(std::numeric_limits<float>::max()).bits, 0x7F80);
  EXPECT_EQ(to_bfloat16(-0.0F).bits, 0x8000);
  EXPECT_EQ(to_bfloat16(std::numeric_limits<float>::denorm_min()).bits, 0);
  // A NaN whose upper half alone would read as infinity.
  float nan = 0;
  const std::uint32_t bits = 0x7F800001;
  std::memcpy(&nan, &bits, 4);
  EXPECT_TRUE(std::isnan(to_float(to_bfloat16(nan))));
  EXPECT_TRUE(std::isnan(to_float(to_float16(nan))));
}

TEST(Convert, floats_round_to_the_nearest_even) {
  Random random(1);
  for (int i = 0; i < 400000; ++i) {
    std::uint32_t bits = random.next_u32();
    if (i % 3 == 0) bits &= ~std::uint32_t{0xFFF};                    // many ties of the half
    if (i % 3 == 1) bits = (bits & ~std::uint32_t{0xFFFF}) | 0x8000;  // ties of the brain float
    if (i % 2 == 0) bits = (bits & 0x87FFFFFF) | 0x38000000;  // exponents around the half's range
    float x = 0;
    std::memcpy(&x, &bits, 4);
    if (std::isnan(x)) continue;
    ASSERT_EQ(static_cast<double>(to_float(to_float16(x))), rounded_half(x)) << x;
    ASSERT_EQ(static_cast<double>(to_float(to_bfloat16(x))), rounded_brain(x)) << x;
  }
}

}  // namespace
