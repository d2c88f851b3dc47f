// Known faults of attention engines, with values derived by hand.
#include <cstring>

#include "attention_support.h"

using namespace qkv;
using namespace qkv::testing;

namespace {

class Attention : public ::testing::TestWithParam<ops::AttentionBackend> {
 protected:
  Tiny tiny(std::int64_t queries, std::vector<float> values) const {
    Tiny problem(queries, std::move(values));
    problem.options.backend = GetParam();
    return problem;
  }
};

Tensor bools(std::initializer_list<int> bits, const Shape& shape) {
  Tensor tensor = Tensor::empty(shape, DType::kBool);
  std::int64_t i = 0;
  for (const int bit : bits) tensor.data<bool>()[i++] = bit != 0;
  return tensor;
}

}  // namespace

TEST_P(Attention, b01_row_without_keys) {
  Tiny p = tiny(2, {1, 2, 6});
  p.options.mask = Mask::keep(bools({1, 1, 1, 0, 0, 0}, {2, 3}));
  const AttentionRun run = p.run();
  expect_values(run.result.out, {3, 0});
  expect_values(run.gradients.dv, {1 / 3.0, 1 / 3.0, 1 / 3.0});
  expect_values(run.gradients.dq, {0, 0});
  expect_values(run.gradients.dk, {0, 0, 0});
  const std::vector<double> lse = values_of(run.result.lse);
  EXPECT_NEAR(lse[0], std::log(3.0), 1e-6);
  EXPECT_EQ(lse[1], -INFINITY);
}

TEST_P(Attention, b01_finite_minimum_is_arithmetic) {
  Tiny p = tiny(1, {1, 2, 6});
  const float lowest = std::numeric_limits<float>::lowest();
  p.options.mask = Mask::additive(Tensor::from<float>({lowest, lowest, lowest}, {1, 3}));
  expect_values(p.out(), {3});
}

TEST_P(Attention, b01_sequence_of_length_zero) {
  const RaggedLayout queries = RaggedLayout::from_lengths(std::vector<std::int64_t>{2, 0, 1, 2});
  const RaggedLayout keys = RaggedLayout::from_lengths(std::vector<std::int64_t>{1, 2, 0, 2});
  const Tensor q = Tensor::zeros({5, 1, 1}), k = Tensor::zeros({5, 1, 1});
  const Tensor v = Tensor::from<float>({1, 2, 3, 4, 8}, {5, 1, 1});
  ops::AttentionOptions options;
  options.backend = GetParam();
  Tensor dout = Tensor::empty({5, 1, 1});
  dout.fill(1);
  const AttentionRun run = run_attention({q, k, v, &queries, &keys}, options, dout);
  expect_values(run.result.out, {1, 1, 0, 6, 6});
  expect_values(run.gradients.dv, {2, 0, 0, 1, 1});
  expect_values(run.gradients.dq, {0, 0, 0, 0, 0});
  EXPECT_EQ(values_of(run.result.lse)[2], -INFINITY);
}

TEST_P(Attention, b04_causal_is_anchored_at_the_last_key) {
  Tiny p = tiny(2, {1, 2, 3, 4});
  p.options.mask = Mask::causal();
  expect_values(p.out(), {2, 2.5});
  p = tiny(1, {1, 2, 3, 4});
  p.options.mask = Mask::causal();
  expect_values(p.out(), {2.5});
  p = tiny(4, {1, 3});
  p.options.mask = Mask::causal();
  const AttentionRun run = p.run();
  expect_values(run.result.out, {0, 0, 1, 2});
  expect_values(run.gradients.dv, {1.5, 0.5});
  expect_values(run.gradients.dq, {0, 0, 0, 0});
}

TEST_P(Attention, b05_key_counts_and_head_sizes_beside_the_tile) {
  for (const std::int64_t s : {1, 63, 64, 65, 66, 127, 129})
    for (const std::int64_t d : {1, 7, 8, 63, 64, 65, 80}) {
      const Tensor q = Tensor::zeros({1, 1, 1, d}), k = Tensor::zeros({1, s, 1, d});
      Tensor v = Tensor::empty({1, s, 1, d}), dout = Tensor::empty({1, 1, 1, d});
      for (std::int64_t j = 0; j < s; ++j)
        for (std::int64_t c = 0; c < d; ++c) v.data<float>()[j * d + c] = static_cast<float>(j);
      dout.fill(1);
      ops::AttentionOptions options;
      options.backend = GetParam();
      const AttentionRun run = run_attention({q, k, v}, options, dout);
      for (const double x : values_of(run.result.out))
        EXPECT_NEAR(x, (static_cast<double>(s) - 1) / 2, 1e-5 * static_cast<double>(s))
            << s << " " << d;
      for (const double x : values_of(run.gradients.dv))
        EXPECT_NEAR(x, 1.0 / static_cast<double>(s), 1e-5) << s << " " << d;
    }
}

TEST_P(Attention, b07_masked_garbage_changes_nothing) {
  for (const float garbage : {kNan, kInf, -kInf}) {
    Tiny p = tiny(1, {2, garbage});
    p.q = {1};
    p.k = {1, garbage};
    for (const Mask& mask :
         {Mask::keep(bools({1, 0}, {1, 2})), Mask::block(bools({0, 1}, {1, 2})), Mask::lengths({1}),
          Mask::additive(Tensor::from<float>({0, -kInf}, {1, 2}))}) {
      p.options.mask = mask;
      const AttentionRun run = p.run();
      expect_values(run.result.out, {2});
      expect_values(run.gradients.dq, {0});
      expect_values(run.gradients.dk, {0, 0}, 0);
      expect_values(run.gradients.dv, {1, 0});
      EXPECT_EQ(values_of(run.gradients.dv)[1], 0);
    }
  }
}

TEST_P(Attention, b08_grouped_heads) {
  struct Case {
    std::int64_t heads, kv_heads;
  };
  for (const Case c : {Case{4, 2}, Case{28, 4}, Case{48, 2}, Case{9, 3}}) {
    const Tensor q = random_tensor({1, 1, c.heads, 2}, DType::kFloat32, 1);
    const Tensor k = random_tensor({1, 1, c.kv_heads, 2}, DType::kFloat32, 2);
    Tensor v = Tensor::empty({1, 1, c.kv_heads, 1});
    for (std::int64_t h = 0; h < c.kv_heads; ++h)
      v.data<float>()[h] = static_cast<float>(10 * (h + 1));
    Tensor dout = Tensor::empty({1, 1, c.heads, 1});
    dout.fill(1);
    ops::AttentionOptions options;
    options.backend = GetParam();
    const AttentionRun run = run_attention({q, k, v}, options, dout);
    const std::vector<double> out = values_of(run.result.out);
    for (std::int64_t h = 0; h < c.heads; ++h)
      EXPECT_FLOAT_EQ(static_cast<float>(out[static_cast<std::size_t>(h)]),
                      static_cast<float>(10 * (h * c.kv_heads / c.heads + 1)));
    for (const double x : values_of(run.gradients.dv))
      EXPECT_FLOAT_EQ(static_cast<float>(x), static_cast<float>(c.heads / c.kv_heads));
  }
  const Tensor q = Tensor::zeros({1, 1, 6, 2}), k = Tensor::zeros({1, 1, 4, 2});
  EXPECT_THROW(ops::attention({q, k, k}, {}), ShapeError);
}

TEST_P(Attention, b09_dropout) {
  Tiny p = tiny(3, {1, 2, 3, 4});
  const std::vector<double> plain = p.out();
  p.options.dropout_key = {7, 3};
  EXPECT_EQ(p.out(), plain);  // p = 0: the key has no influence
  p.options.dropout_p = 1;
  const AttentionRun run = p.run();
  expect_values(run.result.out, {0, 0, 0}, 0);
  expect_values(run.gradients.dv, {0, 0, 0, 0}, 0);
  expect_values(run.gradients.dk, {0, 0, 0, 0}, 0);
  Tiny large = tiny(1, std::vector<float>(4096, 1.0f));
  large.options.dropout_p = 0.5;
  large.options.dropout_key = {11, 5};
  EXPECT_NEAR(large.out()[0], 1, 0.08);
  EXPECT_NE(large.out()[0], 1);
  for (const double bad : {-0.1, 1.5, std::nan("")}) {
    large.options.dropout_p = bad;
    EXPECT_THROW(large.out(), ArgumentError);
  }
}

TEST_P(Attention, b11_kinds_of_masks) {
  Tiny p = tiny(1, {1, 2, 9});
  const Shape shape{1, 1, 1, 3};
  for (const Tensor& keep : {bools({1, 1, 0}, shape), Tensor::from<std::uint8_t>({1, 1, 0}, shape),
                             Tensor::from<std::int64_t>({1, 1, 0}, shape),
                             Tensor::from<std::int32_t>({1, 1, 0}, shape)}) {
    p.options.mask = Mask::keep(keep);
    expect_values(p.out(), {1.5});
    p.options.mask = Mask::block(keep);
    expect_values(p.out(), {9});
    EXPECT_THROW(Mask::additive(keep), ShapeError);
  }
  p.options.mask = Mask::additive(Tensor::from<float>({0, 0, -kInf}, shape));
  expect_values(p.out(), {1.5});
  p.options.mask = Mask::additive(Tensor::from<float>({0, std::log(3.0f), -kInf}, shape));
  expect_values(p.out(), {1.75});
  EXPECT_THROW(Mask::keep(Tensor::from<float>({1, 1, 0}, shape)), ShapeError);
}

TEST_P(Attention, b13_window) {
  struct Case {
    std::int64_t window;
    std::vector<double> out;
  };
  const std::vector<double> causal = {0, 0.5, 1, 1.5, 2, 2.5};
  for (const Case& c : {Case{3, {0, 0.5, 1, 2, 3, 4}}, Case{1, {0, 1, 2, 3, 4, 5}}, Case{6, causal},
                        Case{100, causal}}) {
    Tiny p = tiny(6, {0, 1, 2, 3, 4, 5});
    p.options.mask = Mask::causal() & Mask::window(c.window);
    expect_values(p.out(), c.out);
    p.q.resize(1);  // a cached step sees what the last row saw
    expect_values(p.out(), {c.out[5]});
  }
  EXPECT_THROW(Mask::window(0), ArgumentError);
  Tiny p = tiny(4, {0, 3, 6, 9});
  p.options.mask = Mask::window(2);
  expect_values(p.out(), {1.5, 3, 6, 7.5});
  p.options.mask = Mask::window(0, 2);
  expect_values(p.out(), {3, 6, 7.5, 9});
}

INSTANTIATE_TEST_SUITE_P(Backends, Attention, ::testing::ValuesIn(fp32_backends()),
                         [](const auto& param) {
                           return param.param == ops::AttentionBackend::kNaive ? "naive" : "flash";
                         });
