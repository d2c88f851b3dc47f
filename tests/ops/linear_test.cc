// Products with a packed weight.
#include "ops/linear.h"

#include <gtest/gtest.h>

#include "base/random.h"
#include "support/op_case.h"
#include "support/tensors.h"

using namespace qkv;
using namespace qkv::testing;

namespace {

Tensor normal(const Shape& shape, std::uint64_t seed) {
  Random random(seed, 1);
  return random_normal(shape, DType::kFloat32, random);
}

}  // namespace

// One text alone takes the packed way in parallel over columns, a large batch that over rows.
TEST(PackedWeight, same_bits_as_the_weight_itself) {
  for (const auto& [in, out] : {std::pair{7, 5}, {64, 96}, {256, 512}, {300, 130}}) {
    const Tensor w = normal({out, in}, 1), bias = normal({out}, 2);
    const ops::PackedWeight packed(w);
    for (const int rows : {0, 1, 3, 40, 255, 300, 700}) {
      const Tensor x = normal({rows, in}, 3);
      for (const auto activation :
           {ops::Activation::kNone, ops::Activation::kGelu, ops::Activation::kSwiglu}) {
        if (ops::is_gated(activation) && out % 2 != 0) continue;
        for (const Tensor& b : {bias, Tensor()}) {
          const Tensor expected = ops::linear(x, w, b, activation, false).y;
          EXPECT_TRUE(same_bits(ops::linear(x, packed, b, activation).y, expected))
              << rows << " x " << in << " to " << out;
        }
      }
    }
  }
}

TEST(PackedWeight, refuses_what_it_cannot_pack) {
  EXPECT_THROW(ops::PackedWeight(Tensor::zeros({3})), ShapeError);
  EXPECT_THROW(ops::PackedWeight(Tensor::zeros({0, 3})), ShapeError);
  EXPECT_THROW(ops::PackedWeight(Tensor::zeros({3, 3}, DType::kFloat64)), ShapeError);
  EXPECT_THROW(ops::linear(Tensor::zeros({2, 4}), ops::PackedWeight(Tensor::zeros({3, 3})), {}),
               ShapeError);
}
