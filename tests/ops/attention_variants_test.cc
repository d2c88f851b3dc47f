// Soft-cap, biases with gradient, ALiBi and global tokens: values derived by hand, bits, hidden
// data, refusals.
#include <cstring>

#include "qkv/threads.h"

#include "attention_support.h"
#include "kernels/registry.h"

using namespace qkv;
using namespace qkv::testing;

namespace {

class AttentionVariant : public ::testing::TestWithParam<ops::AttentionBackend> {
 protected:
  Tiny tiny(std::int64_t queries, std::vector<float> values) const {
    Tiny problem(queries, std::move(values));
    problem.options.backend = GetParam();
    return problem;
  }
};

// A random padded problem with everything that this file is about.
struct Everything {
  std::int64_t b = 3, n = 90, s = 170, h = 4, d = 24;
  ops::AttentionInput input{random_tensor({b, n, h, d}, DType::kFloat32, 1),
                            random_tensor({b, s, h / 2, d}, DType::kFloat32, 2),
                            random_tensor({b, s, h / 2, d}, DType::kFloat32, 3)};
  Tensor dout = random_tensor({b, n, h, d}, DType::kFloat32, 4);
  Tensor bias = random_tensor({1, h, n, s}, DType::kFloat32, 5);
  ops::AttentionOptions options;

  Everything() {
    options.softcap = 5;
    options.mask = Mask::additive(bias) & Mask::alibi(alibi_slopes(h)) & Mask::causal() &
                   Mask::window_with_globals(20, 0, {0, 3, 100});
  }
  AttentionRun run(const Shape& dbias) const {
    AttentionRun r = run_attention(input, options, dout);
    r.gradients.dbias = Tensor::empty(dbias);
    r.gradients.dbias.fill(NAN);
    ops::attention_backward(dout, input, r.result, options, r.gradients);
    return r;
  }
};

void expect_same_bits(const AttentionRun& a, const AttentionRun& b) {
  EXPECT_TRUE(equal_bits(a.result.out, b.result.out));
  EXPECT_TRUE(equal_bits(a.result.lse, b.result.lse));
  EXPECT_TRUE(equal_bits(a.gradients.dq, b.gradients.dq));
  EXPECT_TRUE(equal_bits(a.gradients.dk, b.gradients.dk));
  EXPECT_TRUE(equal_bits(a.gradients.dv, b.gradients.dv));
  EXPECT_TRUE(equal_bits(a.gradients.dbias, b.gradients.dbias));
}

}  // namespace

// Scores 1000 and -1000 are held at +-ln 3: weights 9/10 and 1/10.
TEST_P(AttentionVariant, softcap_holds_scores) {
  Tiny p = tiny(1, {1, 11});
  p.q = {1};
  p.k = {1000, -1000};
  p.options.softcap = std::log(3.0);
  const AttentionRun run = p.run();
  expect_values(run.result.out, {2});
  expect_values(run.gradients.dk, {0, 0});  // the cap is flat there
  p.k = {0.001f, 0};                        // and does nothing to small scores
  p.v = {0, 1};
  expect_values(p.out(), {1 / (1 + std::exp(0.001))}, 1e-7);
  for (const double bad : std::vector<double>{0, -1, NAN, INFINITY, 1e-44, 1e40}) {
    p.options.softcap = bad;
    EXPECT_THROW(p.out(), ArgumentError) << bad;
  }
}

// The bias comes after the cap: ln 3 of it beside scores of 0.
TEST_P(AttentionVariant, bias_is_added_after_the_softcap) {
  Tiny p = tiny(1, {0, 4});
  p.options.softcap = 0.01;
  p.options.mask = Mask::additive(Tensor::from<float>({0, std::log(3.0f)}, {1, 2}));
  expect_values(p.out(), {3});
}

TEST_P(AttentionVariant, alibi_is_anchored_like_causal) {
  Tiny p = tiny(2, {0, 1, 0});  // positions 1 and 2 of three keys
  const double slope = std::log(2.0);
  p.options.mask = Mask::alibi({slope});
  expect_values(p.out(), {0.5, 0.5 / 1.75});  // weights 1/2 1 1/2; 1/4 1/2 1
  p.options.mask = Mask::alibi({slope / 2}) & Mask::alibi({slope / 2}) & Mask::causal();
  expect_values(p.out(), {1 / 1.5, 0.5 / 1.75});
  p.options.mask = Mask::alibi({1, 2});
  EXPECT_THROW(p.out(), ShapeError);
}

TEST(AlibiSlopes, are_those_of_the_paper) {
  expect_values(alibi_slopes(8),
                {0.5, 0.25, 0.125, 0.0625, 0.03125, 1 / 64.0, 1 / 128.0, 1 / 256.0}, 0);
  expect_values(alibi_slopes(1), {1 / 256.0}, 0);
  expect_values(alibi_slopes(6), {0.25, 1 / 16.0, 1 / 64.0, 1 / 256.0, 0.5, 0.125}, 0);
  EXPECT_THROW(alibi_slopes(0), ArgumentError);
  EXPECT_THROW(Mask::alibi({1e300}), ArgumentError);
}

TEST_P(AttentionVariant, globals_see_all_and_are_seen_by_all) {
  Tiny p = tiny(6, {0, 1, 2, 3, 4, 15});
  p.options.mask = Mask::window_with_globals(1, 0, {3, 99});
  // Query 3 sees all; the others themselves, the key before, and key 3.
  expect_values(p.out(), {1.5, 4 / 3.0, 2, 25 / 6.0, 3.5, 22 / 3.0});
  p.options.mask = p.options.mask & Mask::causal();  // the future stays hidden, from globals too
  expect_values(p.out(), {0, 0.5, 1.5, 1.5, 3.5, 22 / 3.0});
  p.q.resize(1);  // the last token as a cached step
  expect_values(p.out(), {22 / 3.0});
  EXPECT_THROW(Mask::window_with_globals(1, 1, {-1}), ArgumentError);
  EXPECT_THROW(Mask::window_with_globals(-2, 1, {}), ArgumentError);
}

// Without globals it is the window; two of them intersect.
TEST_P(AttentionVariant, windows_without_globals_are_windows) {
  Tiny p = tiny(6, {0, 1, 2, 3, 4, 15});
  p.options.mask = Mask::window(2, 1);
  const std::vector<double> plain = p.out();
  p.options.mask = Mask::window_with_globals(2, 1, {});
  expect_values(p.out(), plain);
  p.options.mask = Mask::window_with_globals(2, -1, {}) & Mask::window_with_globals(-1, 1, {});
  expect_values(p.out(), plain);
}

TEST_P(AttentionVariant, bias_gradient_of_hidden_pairs_is_zero) {
  Tiny p = tiny(2, {1, 5, 3});
  p.options.mask =
      Mask::lengths({2}) & Mask::additive(Tensor::from<float>({0, 0, 0, -kInf, -kInf, 0}, {2, 3}));
  AttentionRun run = p.run();
  run.gradients.dbias = Tensor::empty({2, 3});
  const Tensor dout = Tensor::empty({1, 2, 1, 1});
  dout.fill(1);
  ops::attention_backward(dout, p.input(), run.result, p.options, run.gradients);
  expect_values(run.gradients.dbias, {-1, 1, 0, 0, 0, 0});  // p (v - mean) of row 0
  for (const Tensor& bad : {Tensor::empty({2, 2}), Tensor::empty({1, 2, 3}),
                            Tensor::empty({2, 3}, DType::kInt32), Tensor::empty({2, 1, 1, 3})}) {
    run.gradients.dbias = bad;
    EXPECT_THROW(ops::attention_backward(dout, p.input(), run.result, p.options, run.gradients),
                 ShapeError);
  }
}

TEST_P(AttentionVariant, bits_do_not_depend_on_threads) {
  Everything all;
  all.options.backend = GetParam();
  for (const Shape& shape : {Shape{all.n, all.s}, Shape{all.b, 1, 1, all.s},
                             Shape{all.b, all.h, all.n, all.s}, Shape{1, 1}}) {
    const int before = num_threads();
    set_num_threads(1);
    const AttentionRun one = all.run(shape);
    for (const int threads : {2, 5}) {
      set_num_threads(threads);
      expect_same_bits(all.run(shape), one);
    }
    set_num_threads(before);
  }
}

// One long sequence, whose parts run side by side when threads are idle.
TEST_P(AttentionVariant, bias_gradient_of_one_long_sequence) {
  const std::int64_t n = 40, s = 1200;
  const ops::AttentionInput input{random_tensor({1, n, 1, 16}, DType::kFloat32, 1),
                                  random_tensor({1, s, 1, 16}, DType::kFloat32, 2),
                                  random_tensor({1, s, 1, 16}, DType::kFloat32, 3)};
  const Tensor dout = random_tensor({1, n, 1, 16}, DType::kFloat32, 4);
  for (const Shape& shape : {Shape{n, s}, Shape{n, 1}, Shape{1, s}}) {
    std::vector<Tensor> got;
    for (const auto backend : {ops::AttentionBackend::kNaive, GetParam()}) {
      ops::AttentionOptions options;
      options.backend = backend;
      AttentionRun run = run_attention(input, options, dout);
      run.gradients.dbias = Tensor::empty(shape);
      ops::attention_backward(dout, input, run.result, options, run.gradients);
      got.push_back(run.gradients.dbias);
    }
    EXPECT_LE(scaled_difference(got[1], got[0]), 5e-6) << shape.str();
  }
}

// Keys that nobody sees may hold anything, under the cap, ALiBi and globals too.
TEST_P(AttentionVariant, hidden_data_changes_no_bit) {
  Everything clean, dirty;
  clean.options.backend = dirty.options.backend = GetParam();
  const Mask mask = clean.options.mask & Mask::lengths({150, 0, 67});
  clean.options.mask = dirty.options.mask = mask;
  for (std::int64_t i = 0; i < clean.b; ++i)
    for (std::int64_t j = (*mask.lengths())[static_cast<std::size_t>(i)]; j < clean.s; ++j)
      for (const Tensor& x : {dirty.input.k, dirty.input.v})
        std::memset(x.data<float>() + (i * clean.s + j) * x.dim(2) * clean.d, 0xFF,
                    static_cast<std::size_t>(x.dim(2) * clean.d) * 4);
  // The future of query 89 is no key; key 60 is hidden from all but its neighbours, and by the bias
  // from all.
  for (Everything* x : {&clean, &dirty})
    for (std::int64_t row = 0; row < x->h * x->n; ++row)
      x->bias.data<float>()[row * x->s + 60] = -kInf;
  for (std::int64_t i = 0; i < clean.b; ++i) {
    dirty.input.k.select(0, i).narrow(0, 60, 1).fill(NAN);
    dirty.input.v.select(0, i).narrow(0, 60, 1).fill(INFINITY);
  }
  dirty.options.mask = Mask::additive(dirty.bias) & Mask::alibi(alibi_slopes(4)) & Mask::causal() &
                       Mask::window_with_globals(20, 0, {0, 3, 100}) & Mask::lengths({150, 0, 67});
  const AttentionRun a = clean.run({clean.n, clean.s}), b = dirty.run({clean.n, clean.s});
  expect_same_bits(a, b);
  for (const double x : values_of(b.gradients.dbias)) ASSERT_TRUE(std::isfinite(x));
}

INSTANTIATE_TEST_SUITE_P(Backends, AttentionVariant, ::testing::ValuesIn(fp32_backends()),
                         [](const auto& param) {
                           return param.param == ops::AttentionBackend::kNaive ? "naive" : "flash";
                         });
