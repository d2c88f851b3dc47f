#include "ops/quantized.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "base/convert.h"
#include "base/random.h"
#include "ops/activation.h"
#include "support/tensors.h"

namespace {
using namespace qkv;
using ops::QuantizedWeight;
using qkv::testing::relative_difference;

Tensor random_matrix(std::int64_t rows, std::int64_t columns, std::uint64_t seed) {
  Random random(seed, 0);
  Tensor x = Tensor::empty({rows, columns});
  for (std::int64_t i = 0; i < x.numel(); ++i)
    x.data<float>()[i] = static_cast<float>(random.normal());
  return x;
}

// Q8_0 blocks of a matrix: d is the largest size of a block over 127.
BlockTensor quantised(const Tensor& w) {
  const std::int64_t rows = w.dim(0), blocks = w.dim(1) / 32;
  BlockTensor q{BlockType::kQ80, w.shape(), Tensor::empty({rows, blocks * 34}, DType::kUInt8)};
  for (std::int64_t b = 0; b < rows * blocks; ++b) {
    const float* x = w.data<float>() + b * 32;
    auto* block = q.bytes.data<std::uint8_t>() + b * 34;
    float largest = 0;
    for (int i = 0; i < 32; ++i) largest = std::max(largest, std::abs(x[i]));
    const Float16 d = to_float16(largest / 127);
    std::memcpy(block, &d, 2);
    for (int i = 0; i < 32; ++i)
      block[2 + i] = static_cast<std::uint8_t>(
          static_cast<std::int8_t>(std::lround(static_cast<double>(x[i] / to_float(d)))));
  }
  return q;
}

// In double, by definition.
Tensor product_of(const Tensor& x, const Tensor& w) {
  Tensor y = Tensor::empty({x.dim(0), w.dim(0)});
  for (std::int64_t t = 0; t < x.dim(0); ++t)
    for (std::int64_t n = 0; n < w.dim(0); ++n) {
      double sum = 0;
      for (std::int64_t k = 0; k < x.dim(1); ++k)
        sum += static_cast<double>(x.data<float>()[t * x.dim(1) + k]) *
               static_cast<double>(w.data<float>()[n * x.dim(1) + k]);
      y.data<float>()[t * w.dim(0) + n] = static_cast<float>(sum);
    }
  return y;
}

TEST(QuantizedLinear, blocks_stand_for_the_weight) {
  const Tensor w = random_matrix(70, 96, 1), x = random_matrix(3, 96, 2);
  const Tensor y = ops::quantized_linear(x, QuantizedWeight(quantised(w)));
  EXPECT_LT(relative_difference(y, product_of(x, w)), 0.02);  // the rounding to 8 bits
  EXPECT_LT(relative_difference(y, product_of(x, ops::dequantize(quantised(w)))), 1e-6);
}

TEST(QuantizedLinear, a_stack_is_its_parts_side_by_side) {
  const Tensor a = random_matrix(5, 64, 1), b = random_matrix(130, 64, 2),
               c = random_matrix(3, 64, 3);
  const std::vector<QuantizedWeight> parts = {QuantizedWeight(quantised(a)), QuantizedWeight(b),
                                              QuantizedWeight(c.to(DType::kBFloat16))};
  const QuantizedWeight whole = QuantizedWeight::stack(parts);
  EXPECT_EQ(whole.rows(), 138);
  EXPECT_EQ(whole.columns(), 64);
  EXPECT_EQ(whole.nbytes(), 5u * 2 * 34 + 130 * 64 * 4 + 3 * 64 * 2);
  const Tensor bias = random_matrix(1, 138, 4).reshape({138});
  for (const std::int64_t rows : {1, 8, 9, 40}) {
    const Tensor x = random_matrix(rows, 64, 5);
    const Tensor y = ops::quantized_linear(x, whole, bias);
    for (std::size_t i = 0, first = 0; i < parts.size(); ++i) {
      const std::int64_t count = parts[i].rows(), begin = static_cast<std::int64_t>(first);
      const Tensor part = ops::quantized_linear(x, parts[i], bias.narrow(0, begin, count));
      EXPECT_LE(relative_difference(y.narrow(1, begin, count).contiguous(), part), 1e-6) << rows;
      first += static_cast<std::size_t>(count);
    }
  }
  const std::vector<QuantizedWeight> unlike = {QuantizedWeight(a),
                                               QuantizedWeight(random_matrix(2, 32, 1))};
  EXPECT_THROW(QuantizedWeight::stack(unlike), ShapeError);
}

TEST(QuantizedLinear, activations_as_in_linear) {
  const QuantizedWeight w(random_matrix(12, 32, 1));
  for (const std::int64_t rows : {2, 20}) {
    const Tensor x = random_matrix(rows, 32, 2);
    const Tensor product = ops::quantized_linear(x, w);
    for (const ops::Activation kind : {ops::Activation::kGelu, ops::Activation::kSwiglu}) {
      const Tensor y = ops::quantized_linear(x, w, Tensor(), kind);
      EXPECT_EQ(y.dim(1), ops::is_gated(kind) ? 6 : 12);
      EXPECT_LE(relative_difference(y, ops::activate(product, kind)), 1e-6);
    }
    EXPECT_EQ(
        ops::quantized_linear(x.narrow(0, 0, 0), w, Tensor(), ops::Activation::kSwiglu).shape(),
        (Shape{0, 6}));
  }
}

// The bits of a row do not depend on its neighbours, up to 8 rows and beyond.
TEST(QuantizedLinear, a_row_stands_alone) {
  const QuantizedWeight w(quantised(random_matrix(70, 320, 1)));
  const Tensor x = random_matrix(200, 320, 2);
  const auto row = [&](std::int64_t first, std::int64_t count, std::int64_t at) {
    const Tensor y = ops::quantized_linear(x.narrow(0, first, count), w);
    return std::vector<float>(y.data<float>() + at * 70, y.data<float>() + (at + 1) * 70);
  };
  const std::vector<float> alone = row(10, 1, 0);
  for (const std::int64_t count : {2, 3, 4, 5, 6, 7, 8}) {
    EXPECT_EQ(row(10, count, 0), alone) << count;
    EXPECT_EQ(row(11 - count, count, count - 1), alone) << count;
  }
  const std::vector<float> among = row(0, 9, 5);
  for (const std::int64_t count : {10, 64, 129, 200}) EXPECT_EQ(row(0, count, 5), among) << count;
}

TEST(QuantizedLinear, rows_of_x_may_lie_apart) {
  const QuantizedWeight w(quantised(random_matrix(9, 64, 1)));
  const Tensor wide = random_matrix(12, 80, 2), x = wide.narrow(1, 7, 64);
  for (const std::int64_t rows : {3, 12}) {
    const Tensor part = x.narrow(0, 0, rows);
    EXPECT_EQ(relative_difference(ops::quantized_linear(part, w),
                                  ops::quantized_linear(part.contiguous(), w)),
              0);
  }
}

TEST(QuantizedLinear, large_weights_in_several_pieces) {
  const Tensor w = random_matrix(700, 4096, 1), x = random_matrix(9, 4096, 2);  // above 4 MB
  EXPECT_LT(relative_difference(ops::quantized_linear(x, QuantizedWeight(w)), product_of(x, w)),
            5e-6);
}

TEST(QuantizedLinear, what_does_not_fit_is_refused) {
  const BlockTensor good = quantised(random_matrix(4, 64, 1));
  BlockTensor bad = good;
  bad.shape = Shape{4, 65};
  EXPECT_THROW(QuantizedWeight{bad}, ShapeError);
  bad.shape = Shape{2, 2, 64};
  EXPECT_THROW(QuantizedWeight{bad}, ShapeError);
  bad = good;
  bad.type = BlockType::kQ41;
  EXPECT_THROW(QuantizedWeight{bad}, ShapeError);
  EXPECT_THROW(QuantizedWeight{Tensor()}, ShapeError);
  EXPECT_THROW(QuantizedWeight{Tensor::zeros({2, 2}, DType::kInt32)}, ShapeError);
  EXPECT_THROW(QuantizedWeight{Tensor::zeros({0, 2})}, ShapeError);
  const QuantizedWeight w(good);
  EXPECT_THROW(ops::quantized_linear(Tensor::zeros({1, 32}), w), ShapeError);
  EXPECT_THROW(ops::quantized_linear(Tensor::zeros({1, 64}, DType::kFloat64), w), ShapeError);
  EXPECT_THROW(ops::quantized_linear(Tensor::zeros({1, 64}), w, Tensor::zeros({3})), ShapeError);
  EXPECT_THROW(ops::quantized_linear(Tensor::zeros({1, 64}), QuantizedWeight()), ShapeError);
  const QuantizedWeight odd(quantised(random_matrix(3, 32, 1)));
  EXPECT_THROW(
      ops::quantized_linear(Tensor::zeros({1, 32}), odd, Tensor(), ops::Activation::kSwiglu),
      ShapeError);
}

TEST(QuantizedEmbedding, rows_by_id) {
  const BlockTensor table = quantised(random_matrix(6, 64, 1));
  const QuantizedWeight w(table);
  const std::vector<std::int32_t> ids = {5, 0, 5};
  const Tensor rows = ops::quantized_embedding(w, ids), whole = ops::dequantize(table);
  for (std::size_t t = 0; t < ids.size(); ++t)
    EXPECT_EQ(std::memcmp(rows.data<float>() + 64 * t, whole.data<float>() + 64 * ids[t], 256), 0);
  for (const std::int32_t bad : {-1, 6, INT32_MAX})
    EXPECT_THROW(ops::quantized_embedding(w, std::vector<std::int32_t>{bad}), ArgumentError);
}

}  // namespace
