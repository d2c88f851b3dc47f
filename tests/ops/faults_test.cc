// Known faults of Transformer engines that touch ops; ids and right values as in the project's list
// of faults.
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "ops/activation.h"
#include "ops/embedding.h"
#include "ops/norm.h"
#include "ops/optimizer.h"
#include "ops/rope.h"
#include "ops/softmax.h"

using namespace qkv;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

void expect_values(const Tensor& x, const std::vector<double>& right, double tolerance) {
  ASSERT_EQ(x.numel(), static_cast<std::int64_t>(right.size()));
  const Tensor wide = x.to(DType::kFloat64);
  for (std::size_t i = 0; i < right.size(); ++i)
    EXPECT_NEAR(wide.data<double>()[i], right[i], tolerance) << "element " << i;
}

Tensor row(std::initializer_list<float> values) {
  return Tensor::from<float>(values, {1, static_cast<std::int64_t>(values.size())});
}
Tensor vec(std::initializer_list<float> values) {
  return Tensor::from<float>(values, {static_cast<std::int64_t>(values.size())});
}
Tensor ones(std::int64_t n, DType dtype = DType::kFloat32) {
  Tensor x = Tensor::empty({n}, dtype);
  x.fill(1);
  return x;
}

Tensor rotated(std::initializer_list<double> values, std::int32_t position,
               ops::RopePairing pairing, bool inverse = false) {
  Tensor x = Tensor::from<double>(values, {1, 1, static_cast<std::int64_t>(values.size())});
  const std::int32_t positions[] = {position};
  ops::rope_inplace(x, positions, {.pairing = pairing}, inverse);
  return x;
}

double dot(const Tensor& a, const Tensor& b) {
  double sum = 0;
  for (std::int64_t i = 0; i < a.numel(); ++i) sum += a.data<double>()[i] * b.data<double>()[i];
  return sum;
}

}  // namespace

TEST(Rope, b24_pairs_the_right_channels) {
  expect_values(rotated({1, 2, 3, 4}, 1, ops::RopePairing::kHalfSplit),
                {-1.984111, 1.959901, 2.462378, 4.019800}, 1e-6);
  expect_values(rotated({1, 2, 3, 4}, 1, ops::RopePairing::kInterleaved),
                {-1.142640, 1.922076, 2.959851, 4.029800}, 1e-6);
  for (const auto pairing : {ops::RopePairing::kHalfSplit, ops::RopePairing::kInterleaved}) {
    const double late =
        dot(rotated({1, 2, 3, 4, 5, 6}, 5, pairing), rotated({6, 5, -4, 3, 2, 1}, 3, pairing));
    const double early =
        dot(rotated({1, 2, 3, 4, 5, 6}, 2, pairing), rotated({6, 5, -4, 3, 2, 1}, 0, pairing));
    EXPECT_NEAR(late, early, 1e-12);
  }
}

TEST(Rope, b24_odd_width_is_refused) {
  Tensor x = Tensor::zeros({1, 1, 5});
  const std::int32_t positions[] = {1};
  EXPECT_THROW(ops::rope_inplace(x, positions, {}), ShapeError);
}

TEST(Sinusoid, b24_neighbouring_channels_and_odd_width) {
  expect_values(ops::sinusoidal_table(2, 4).select(0, 1), {0.841471, 0.540302, 0.010000, 0.999950},
                1e-6);
  expect_values(ops::sinusoidal_table(2, 5).select(0, 1),
                {0.841471, 0.540302, 0.025116, 0.999685, 0.000631}, 1e-6);
}

TEST(Rope, b25_angles_of_late_positions) {
  const std::vector<std::pair<std::int32_t, double>> right = {
      {257, 0.819306}, {1001, -0.391940}, {4095, -0.065976}, {15962, -0.908016}};
  for (const auto& [position, cosine] : right) {
    Tensor x = Tensor::from<float>({1, 0, 0, 0}, {1, 1, 4});
    const std::int32_t positions[] = {position};
    ops::rope_inplace(x, positions, {});
    EXPECT_NEAR(x.data<float>()[0], cosine, 1e-6) << position;
  }
  // Far beyond the table of angles that is kept.
  Tensor x = Tensor::from<float>({1, 0, 0, 0}, {1, 1, 4});
  const std::int32_t positions[] = {1000003};
  ops::rope_inplace(x, positions, {});
  EXPECT_NEAR(x.data<float>()[0], std::cos(1000003.0), 1e-6);
}

TEST(CrossEntropy, b29_smoothing_leaves_out_ignored_rows) {
  const Tensor logits = Tensor::from<float>({2, 0, 0, 0, 0, 0, 9, 0}, {2, 4});
  const std::int32_t targets[] = {0, -100};
  const auto r = ops::cross_entropy(logits, targets, {.label_smoothing = 0.2}, true);
  EXPECT_EQ(r.counted, 1);
  EXPECT_EQ(r.correct, 1);
  EXPECT_NEAR(r.loss_sum, 0.640753, 1e-6);
  for (int j = 0; j < 4; ++j) EXPECT_EQ(r.dlogits.data<float>()[4 + j], 0.0f);
  const std::int32_t ignored[] = {-100, -100};
  const auto none = ops::cross_entropy(logits, ignored, {.label_smoothing = 0.2}, true);
  EXPECT_EQ(none.counted, 0);
  EXPECT_EQ(none.loss_sum, 0);
  expect_values(none.dlogits, std::vector<double>(8, 0), 0);
}

TEST(CrossEntropy, b29_ignored_row_may_hold_anything) {
  const Tensor logits = Tensor::from<float>({2, 0, 0, 0, NAN, kInf, -kInf, 0}, {2, 4});
  const std::int32_t targets[] = {0, -100};
  const auto r = ops::cross_entropy(logits, targets, {.label_smoothing = 0.2}, true);
  EXPECT_NEAR(r.loss_sum, 0.640753, 1e-6);
  for (int j = 0; j < 4; ++j) EXPECT_EQ(r.dlogits.data<float>()[4 + j], 0.0f);
}

TEST(Embedding, b42_ids_outside_the_table_are_errors) {
  const Tensor table = Tensor::zeros({5, 4}), gradient = Tensor::zeros({5, 4});
  for (const std::int32_t id : {-100, -1, 5, 0x7fffffff}) {
    const std::int32_t ids[] = {4, id};
    EXPECT_THROW(ops::embedding(ids, table), ArgumentError) << id;
    EXPECT_THROW(ops::embedding_backward(Tensor::zeros({2, 4}), ids, gradient, 1, ops::Into::kAdd),
                 ArgumentError)
        << id;
  }
}

TEST(CrossEntropy, b42_only_the_agreed_number_is_ignored) {
  const Tensor logits = Tensor::zeros({2, 4});
  for (const std::int32_t target : {-99, -1, 4, 0x7fffffff}) {
    const std::int32_t targets[] = {-100, target};
    EXPECT_THROW(ops::cross_entropy(logits, targets, {}, true), ArgumentError) << target;
  }
}

TEST(GradientNorm, b31_large_finite_and_infinite) {
  EXPECT_TRUE(std::isinf(ops::sum_of_squares(vec({kInf, 1}))));
  EXPECT_TRUE(std::isnan(ops::sum_of_squares(vec({NAN, 1}))));
  Tensor big = Tensor::empty({100});
  big.fill(1e20);
  EXPECT_NEAR(std::sqrt(ops::sum_of_squares(big)) / 1e21, 1, 1e-6);
  EXPECT_EQ(ops::sum_of_squares(Tensor::zeros({7})), 0);
  EXPECT_EQ(ops::find_non_finite(vec({1, 2, kInf, NAN})), 2);
  EXPECT_EQ(ops::find_non_finite(vec({1, 3e38f})), -1);
}

TEST(AdamW, b33_two_steps_by_hand) {
  Tensor theta = vec({1}), g = vec({0.1f}), m = vec({0}), v = vec({0});
  ops::AdamWStep step{
      .learning_rate = 0.1, .beta1 = 0.9, .beta2 = 0.999, .eps = 0.1, .weight_decay = 0.1, .t = 1};
  ops::adamw(theta, g, m, v, step, false);
  EXPECT_NEAR(theta.data<float>()[0], 0.94, 1e-6);
  EXPECT_EQ(g.data<float>()[0], 0.1f);
  step.t = 2;
  ops::adamw(theta, g, m, v, step, true);
  EXPECT_NEAR(theta.data<float>()[0], 0.8806, 1e-6);
  EXPECT_EQ(g.data<float>()[0], 0.0f);
}

TEST(AdamW, b34_zero_gradient_decays_and_no_decay_keeps_bits) {
  const ops::AdamWStep decayed{.learning_rate = 0.1, .weight_decay = 0.5, .t = 1};
  Tensor theta = vec({2, -3, 0.7f}), g = vec({0, 0, 0}), m = vec({0, 0, 0}), v = vec({0, 0, 0});
  ops::adamw(theta, g, m, v, decayed, true);
  expect_values(theta, {1.9, -2.85, 0.665}, 1e-6);
  const ops::AdamWStep plain{.learning_rate = 0.1, .weight_decay = 0, .t = 1};
  Tensor kept = vec({2, -3, 0.7f});
  ops::adamw(kept, g, m, v, plain, true);
  EXPECT_EQ(kept.data<float>()[0], 2.0f);
  EXPECT_EQ(kept.data<float>()[1], -3.0f);
  EXPECT_EQ(kept.data<float>()[2], 0.7f);
}

TEST(Norm, b37_large_offset_and_constant_rows) {
  const std::vector<double> right = {-1.341635, -0.447212, 0.447212, 1.341635};
  expect_values(
      ops::norm(row({40000, 40001, 40002, 40003}), ops::NormKind::kLayer, ones(4), Tensor(), 1e-5)
          .y,
      right, 1e-5);
  expect_values(ops::norm(row({1, 2, 3, 4}), ops::NormKind::kLayer, ones(4), Tensor(), 1e-5).y,
                right, 1e-6);
  for (const double value : {1234.0, 1234.567, 0.1, -7e6}) {
    Tensor constant = Tensor::empty({1, 256});
    constant.fill(value);
    expect_values(ops::norm(constant, ops::NormKind::kLayer, ones(256), Tensor(), 1e-5).y,
                  std::vector<double>(256, 0), 0);
  }
}

TEST(Norm, b37_rms_of_large_and_small_values) {
  const auto rms = [](double value, double eps) {
    Tensor x = Tensor::empty({1, 8});
    x.fill(value);
    return static_cast<double>(
        ops::norm(x, ops::NormKind::kRms, ones(8), Tensor(), eps).y.data<float>()[5]);
  };
  EXPECT_NEAR(rms(1000, 1e-6), 1.0, 1e-6);
  EXPECT_NEAR(rms(1e-3, 1e-6), 0.707107, 1e-6);
  EXPECT_NEAR(rms(1e-3, 1e-5), 0.301511, 1e-6);
  EXPECT_NEAR(rms(1e25, 1e-6), 1.0, 1e-6);  // its square is beyond fp32
}

TEST(Gelu, b38_two_forms) {
  const Tensor x = row({2, -1, 2.3f});
  expect_values(ops::activate(x, ops::parse_activation("gelu")), {1.9544997, -0.1586553, 2.2753345},
                5e-7);
  for (const char* name : {"gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_tanh"})
    expect_values(ops::activate(x, ops::parse_activation(name)), {1.9545977, -0.1588080, 2.2756730},
                  5e-7);
  const Tensor at = row({-2.699f});
  const double gap = ops::activate(at, ops::Activation::kGelu).data<float>()[0] -
                     ops::activate(at, ops::Activation::kGeluTanh).data<float>()[0];
  EXPECT_NEAR(std::fabs(gap), 4.732e-4, 1e-6);
  EXPECT_EQ(ops::parse_activation("relu"), ops::Activation::kRelu);
  EXPECT_EQ(ops::parse_activation("silu"), ops::Activation::kSilu);
  EXPECT_THROW(ops::parse_activation("gelu2"), ConfigError);
}
