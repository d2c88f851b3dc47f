// What a tensor refuses: every request that has no answer is a ShapeError, never a wild read.
#include "qkv/tensor.h"

#include <functional>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

using namespace qkv;

TEST(Tensor, views_stay_inside) {
  const Tensor x = Tensor::zeros({2, 3});
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  EXPECT_THROW(x.narrow(0, 1, 2), ShapeError);
  EXPECT_THROW(x.narrow(0, -1, 1), ShapeError);
  EXPECT_THROW(x.narrow(0, 1, kMax), ShapeError);
  EXPECT_THROW(x.narrow(0, kMax, 1), ShapeError);
  EXPECT_THROW(x.narrow(2, 0, 1), ShapeError);
  EXPECT_THROW(x.select(1, 3), ShapeError);
  EXPECT_THROW(x.transpose(0, 2), ShapeError);
  EXPECT_EQ(x.narrow(1, 3, 0).shape(), Shape({2, 0}));
}

TEST(Tensor, reshape_keeps_the_number_of_elements) {
  const Tensor x = Tensor::zeros({2, 3});
  EXPECT_EQ(x.reshape({-1, 2}).shape(), Shape({3, 2}));
  constexpr std::int64_t kBig = std::int64_t{1} << 32;
  for (const Shape& bad : {Shape{-2, -3}, Shape{-1, -1, -1}, Shape{-1, -1}, Shape{4}, Shape{-1, 4},
                           Shape{-1, 0}, Shape{kBig, kBig, 6}, Shape{-1, kBig, kBig}})
    EXPECT_THROW(x.reshape(bad), ShapeError) << bad.str();
  EXPECT_THROW(x.transpose(0, 1).reshape({6}), ShapeError);
}

TEST(Tensor, shapes_that_no_memory_holds_are_refused) {
  constexpr std::int64_t kBig = std::int64_t{1} << 40;
  EXPECT_THROW(Tensor::empty({-1, 2}), ShapeError);
  EXPECT_THROW(Tensor::empty({kBig, kBig}), ShapeError);
  EXPECT_EQ(Tensor::wrap(nullptr, {0, 7}, DType::kFloat32).numel(), 0);
  EXPECT_EQ(Tensor::empty({0, kBig, kBig}).numel(), 0);
}

TEST(Tensor, undefined_ones_have_nothing_to_give) {
  const Tensor none, x = Tensor::zeros({1});
  const std::vector<std::function<void()>> uses = {
      [&] { none.clone(); },          [&] { none.contiguous(); },
      [&] { none.to(DType::kInt8); }, [&] { none.to(DType::kFloat32); },
      [&] { none.fill(1); },          [&] { none.reshape({1}); },
      [&] { none.narrow(0, 0, 0); },  [&] { none.select(0, 0); },
      [&] { none.copy_from(none); },  [&] { x.select(0, 0).copy_from(none); }};
  for (std::size_t i = 0; i < uses.size(); ++i) EXPECT_THROW(uses[i](), ShapeError) << i;
}

TEST(Tensor, wraps_memory_of_any_strides) {
  std::vector<float> memory = {0, 1, 2, 3, 4, 5};
  const Tensor columns = Tensor::wrap_strided(memory.data(), {3, 2}, {1, 3}, DType::kFloat32);
  const Tensor dense = columns.contiguous();
  EXPECT_EQ(std::vector<float>(dense.data<float>(), dense.data<float>() + 6),
            (std::vector<float>{0, 3, 1, 4, 2, 5}));
  const Tensor backwards =
      Tensor::wrap_strided(memory.data() + 5, {2, 2}, {0, -1}, DType::kFloat32).contiguous();
  EXPECT_EQ(std::vector<float>(backwards.data<float>(), backwards.data<float>() + 4),
            (std::vector<float>{5, 4, 5, 4}));
  EXPECT_THROW(Tensor::wrap_strided(memory.data(), {3, 2}, {1}, DType::kFloat32), ShapeError);
}
