#include "qkv/mask.h"

#include <gtest/gtest.h>

using namespace qkv;

namespace {
Tensor ones(const Shape& shape, DType dtype = DType::kBool) {
  Tensor tensor = Tensor::empty(shape, dtype);
  tensor.fill(1);
  return tensor;
}
}  // namespace

TEST(Mask, trivial_and_text) {
  EXPECT_TRUE(Mask().is_trivial());
  EXPECT_EQ(Mask().str(), "all");
  const Mask mask = Mask::causal() & Mask::window(3) & Mask::lengths({2, 7}) &
                    Mask::keep(ones({2, 1, 1, 7})) & Mask::block(ones({4, 7}));
  EXPECT_FALSE(mask.is_trivial());
  EXPECT_TRUE(mask.is_causal());
  EXPECT_EQ(mask.left(), 2);
  EXPECT_EQ(mask.right(), 0);
  EXPECT_EQ(mask.str(),
            "causal & window(2, 0) & lengths[2] & keep[2, 1, 1, 7] & block[1, 1, 4, 7]");
}

TEST(Mask, and_intersects) {
  const Mask mask = Mask::window(5, -1) & Mask::window(-1, 4) & Mask::window(2, 7);
  EXPECT_EQ(mask.left(), 2);
  EXPECT_EQ(mask.right(), 4);
  EXPECT_FALSE(mask.is_causal());
  const Mask lengths = Mask::lengths({3, 5}) & Mask::lengths({4, 2});
  EXPECT_EQ(*lengths.lengths(), (std::vector<std::int64_t>{3, 2}));
  EXPECT_THROW(Mask::lengths({3}) & Mask::lengths({4, 2}), ShapeError);
}

TEST(Mask, shapes) {
  EXPECT_NO_THROW(Mask::keep(ones({3, 5})).check(2, 4, 3, 5));
  EXPECT_NO_THROW(Mask::keep(ones({2, 1, 1, 5})).check(2, 4, 3, 5));
  EXPECT_NO_THROW(Mask::keep(ones({2, 4, 3, 5})).check(2, 4, 3, 5));
  EXPECT_THROW(Mask::keep(ones({3, 4})).check(2, 4, 3, 5), ShapeError);
  EXPECT_THROW(Mask::keep(ones({3, 1, 3, 5})).check(2, 4, 3, 5), ShapeError);
  EXPECT_THROW(Mask::keep(ones({5})), ShapeError);
  EXPECT_THROW(Mask::keep(ones({2, 3, 5})), ShapeError);
  EXPECT_THROW(Mask::keep(Tensor()), ShapeError);
  EXPECT_THROW(Mask::lengths({3, 6}).check(2, 4, 3, 5), ShapeError);
  EXPECT_THROW(Mask::lengths({3}).check(2, 4, 3, 5), ShapeError);
  EXPECT_NO_THROW(Mask::lengths({0, 5}).check(2, 4, 3, 5));
}

TEST(Mask, kinds_are_not_mixed_up) {
  EXPECT_THROW(Mask::keep(ones({3, 5}, DType::kFloat32)), ShapeError);
  EXPECT_THROW(Mask::block(ones({3, 5}, DType::kFloat64)), ShapeError);
  EXPECT_THROW(Mask::additive(ones({3, 5}, DType::kBool)), ShapeError);
  EXPECT_THROW(Mask::additive(ones({3, 5}, DType::kInt64)), ShapeError);
  EXPECT_THROW(Mask::lengths({-1}), ArgumentError);
  EXPECT_THROW(Mask::window(0), ArgumentError);
  EXPECT_THROW(Mask::window(-2, 3), ArgumentError);
}
