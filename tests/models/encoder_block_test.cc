// The promised EncoderBlock: its gradients are checked by examples/block_gradient.cc; here its
// edges.
#include "qkv/encoder_block.h"

#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

using namespace qkv;

namespace {

EncoderBlockOptions small() {
  EncoderBlockOptions options;
  options.d_model = 8;
  options.num_heads = 2;
  options.d_ff = 16;
  return options;
}

RaggedLayout layout_of(std::vector<std::int64_t> lengths) {
  return RaggedLayout::from_lengths(lengths);
}

Tensor ramp(const Shape& shape, DType dtype) {
  const Tensor x = Tensor::empty(shape, DType::kFloat64);
  for (std::int64_t i = 0; i < x.numel(); ++i)
    x.data<double>()[i] = std::sin(static_cast<double>(i));
  return x.to(dtype);
}

}  // namespace

TEST(EncoderBlock, same_seed_same_bits_and_fp32_follows_fp64) {
  const RaggedLayout layout = layout_of({3, 2});
  EncoderBlock a(small(), 5), b(small(), 5), wide(small(), 5, DType::kFloat64);
  const Tensor x = ramp({5, 8}, DType::kFloat32);
  const Tensor ya = a.forward(x, layout), yb = b.forward(x, layout);
  const Tensor yw = wide.forward(x.to(DType::kFloat64), layout);
  for (std::int64_t i = 0; i < ya.numel(); ++i) {
    EXPECT_EQ(ya.data<float>()[i], yb.data<float>()[i]);
    EXPECT_NEAR(ya.data<float>()[i], yw.data<double>()[i], 1e-5);
  }
}

TEST(EncoderBlock, writing_to_a_parameter_changes_the_block) {
  EncoderBlock block(small(), 5);
  const Tensor x = ramp({3, 8}, DType::kFloat32);
  const float before = block.forward(x, layout_of({3})).data<float>()[0];
  block.parameter("feed_forward.down.bias").data<float>()[0] += 1;
  EXPECT_NEAR(block.forward(x, layout_of({3})).data<float>()[0], before + 1, 1e-5);
}

TEST(EncoderBlock, refuses_what_cannot_work) {
  EncoderBlockOptions options = small();
  options.num_heads = 3;
  EXPECT_THROW(EncoderBlock(options, 1), ConfigError);
  options = small();
  options.norm_placement = "middle";
  EXPECT_THROW(EncoderBlock(options, 1), ConfigError);
  EXPECT_THROW(EncoderBlock(small(), 1, DType::kInt32), ConfigError);
  EncoderBlock block(small(), 1);
  EXPECT_THROW(block.forward(ramp({4, 8}, DType::kFloat32), layout_of({3})), ShapeError);
  EXPECT_THROW(block.forward(ramp({3, 8}, DType::kFloat64), layout_of({3})), ShapeError);
  EXPECT_THROW(block.backward(ramp({3, 8}, DType::kFloat32)), ArgumentError);
  RaggedLayout falling = layout_of({3});
  falling.starts = {0, 5, 3};
  EXPECT_THROW(block.forward(ramp({3, 8}, DType::kFloat32), falling), ShapeError);
  EXPECT_THROW(block.parameter("attention.nothing"), ArgumentError);
  EXPECT_THROW(block.gradient("attention.qkv.weight"), ArgumentError);
}

TEST(EncoderBlock, backward_needs_a_forward_of_its_own) {
  EncoderBlock block(small(), 1);
  const Tensor x = ramp({3, 8}, DType::kFloat32);
  block.forward(x, layout_of({3}));
  EXPECT_THROW(block.backward(Tensor()), ShapeError);
  EXPECT_THROW(block.backward(ramp({3, 7}, DType::kFloat32)), ShapeError);
  EXPECT_THROW(block.backward(ramp({3, 8}, DType::kFloat64)), ShapeError);
  EXPECT_EQ(block.backward(x).shape(), x.shape());  // the refused ones took nothing away
  EXPECT_EQ(block.gradient("attention.qkv.weight").shape(), Shape({24, 8}));
  EXPECT_THROW(block.backward(x), ArgumentError);
}
