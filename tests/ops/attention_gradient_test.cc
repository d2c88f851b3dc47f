// Finite differences in fp64, and properties of the linear-time form.
#include <cstring>
#include <functional>

#include "attention_support.h"

using namespace qkv;
using namespace qkv::testing;

namespace {

double dot(const Tensor& a, const Tensor& b) {
  const std::vector<double> x = values_of(a), y = values_of(b);
  double sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) sum += x[i] * y[i];
  return sum;
}

// Central differences of loss() over every element of `x` against `gradient`.
void expect_gradient(const Tensor& x, const Tensor& gradient, const std::function<double()>& loss,
                     const char* name) {
  const std::vector<double> got = values_of(gradient);
  double worst = 0, largest = 0;
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    double& value = x.data<double>()[i];
    const double kept = value, step = 1e-5;
    value = kept + step;
    const double up = loss();
    value = kept - step;
    const double down = loss();
    value = kept;
    worst = std::max(worst, std::fabs((up - down) / (2 * step) - got[static_cast<std::size_t>(i)]));
    largest = std::max(largest, std::fabs(got[static_cast<std::size_t>(i)]));
  }
  EXPECT_LE(worst, 1e-7 * std::max(largest, 1.0)) << name;
}

struct Ragged {
  RaggedLayout queries, keys;
  Tensor q, k, v, dout;
  ops::AttentionInput input() const { return {q, k, v, &queries, &keys}; }
};

Ragged ragged(std::vector<std::int64_t> n, std::vector<std::int64_t> s, std::int64_t heads,
              std::int64_t kv_heads) {
  Ragged r;
  r.queries = RaggedLayout::from_lengths(n);
  r.keys = RaggedLayout::from_lengths(s);
  const std::int64_t t = r.queries.tokens(), u = r.keys.tokens();
  r.q = random_tensor({t, heads, 3}, DType::kFloat64, 1);
  r.k = random_tensor({u, kv_heads, 3}, DType::kFloat64, 2);
  r.v = random_tensor({u, kv_heads, 5}, DType::kFloat64, 3);
  r.dout = random_tensor({t, heads, 5}, DType::kFloat64, 4);
  return r;
}

void expect_attention_gradients(const Ragged& r, const ops::AttentionOptions& options) {
  const AttentionRun run = run_attention(r.input(), options, r.dout);
  const auto loss = [&] { return dot(ops::attention(r.input(), options).out, r.dout); };
  expect_gradient(r.q, run.gradients.dq, loss, "dq");
  expect_gradient(r.k, run.gradients.dk, loss, "dk");
  expect_gradient(r.v, run.gradients.dv, loss, "dv");
}

}  // namespace

TEST(AttentionGradient, masks_and_groups) {
  const Ragged r = ragged({4, 1, 6}, {5, 2, 3}, 4, 2);
  ops::AttentionOptions options;
  expect_attention_gradients(r, options);
  options.scale = 0.7;
  options.mask = Mask::causal();
  expect_attention_gradients(r, options);
  options.mask = Mask::window(2) & Mask::lengths({4, 0, 3});
  expect_attention_gradients(r, options);
  Tensor bias = random_tensor({3, 4, 6, 5}, DType::kFloat64, 9);
  for (std::int64_t i = 0; i < bias.numel(); i += 3) bias.data<double>()[i] = -INFINITY;
  options.mask = Mask::additive(bias) & Mask::causal();
  expect_attention_gradients(r, options);
}

TEST(AttentionGradient, dropout) {
  const Ragged r = ragged({4, 7}, {4, 7}, 2, 1);
  ops::AttentionOptions options;
  options.dropout_p = 0.4;
  options.dropout_key = {123, 4};
  expect_attention_gradients(r, options);
}

TEST(AttentionGradient, softcap_alibi_and_globals) {
  const Ragged r = ragged({4, 1, 6}, {5, 2, 8}, 4, 2);
  ops::AttentionOptions options;
  options.softcap = 0.7;
  expect_attention_gradients(r, options);
  options.mask = Mask::alibi({0.5, 0.25, 0, -0.3}) & Mask::causal();
  expect_attention_gradients(r, options);
  options.softcap.reset();
  options.mask = options.mask & Mask::window_with_globals(1, 0, {0, 6});
  expect_attention_gradients(r, options);
}

// Every way to broadcast, of either element type, with and without soft-cap, at scale 0 too.
TEST(AttentionGradient, bias) {
  const Ragged r = ragged({4, 0, 6}, {5, 2, 3}, 4, 2);
  for (const Shape& shape :
       {Shape{6, 5}, Shape{1, 5}, Shape{6, 1}, Shape{1, 1}, Shape{3, 1, 1, 5}, Shape{3, 1, 6, 5},
        Shape{3, 4, 6, 5}, Shape{1, 4, 6, 5}, Shape{1, 4, 1, 1}, Shape{3, 4, 6, 1}})
    for (const double scale : {0.7, 0.0}) {
      const Tensor bias = random_tensor(shape, DType::kFloat64, 9);
      ops::AttentionOptions options;
      options.scale = scale;
      if (shape.rank() == 4) options.softcap = 1.2;
      options.mask = Mask::additive(bias) & Mask::causal();
      const AttentionRun run = run_attention(r.input(), options, r.dout);
      ops::AttentionGradients gradients = run.gradients;
      const auto loss = [&] { return dot(ops::attention(r.input(), options).out, r.dout); };
      gradients.dbias = Tensor::empty(shape, DType::kFloat64);
      gradients.dbias.fill(NAN);
      ops::attention_backward(r.dout, r.input(), run.result, options, gradients);
      expect_gradient(bias, gradients.dbias, loss, shape.str().c_str());
      const Tensor wide = gradients.dbias;
      gradients.dbias = Tensor::empty(shape, DType::kFloat32);
      ops::attention_backward(r.dout, r.input(), run.result, options, gradients);
      EXPECT_LE(scaled_difference(gradients.dbias, wide), 1e-7) << shape.str();
    }
}

TEST(AttentionGradient, linear) {
  for (const bool causal : {false, true}) {
    const Ragged r = ragged({4, 0, 1, 6}, {4, 0, 1, 6}, 4, 2);
    const Tensor dq = Tensor::empty(r.q.shape(), DType::kFloat64);
    const Tensor dk = Tensor::empty(r.k.shape(), DType::kFloat64);
    const Tensor dv = Tensor::empty(r.v.shape(), DType::kFloat64);
    ops::linear_attention_backward(r.dout, r.input(), causal, {dq, dk, dv});
    const auto loss = [&] { return dot(ops::linear_attention(r.input(), causal), r.dout); };
    expect_gradient(r.q, dq, loss, "dq");
    expect_gradient(r.k, dk, loss, "dk");
    expect_gradient(r.v, dv, loss, "dv");
  }
}

TEST(LinearAttention, equals_its_definition) {
  for (const bool causal : {false, true}) {
    const Ragged r = ragged({5, 3}, {5, 3}, 2, 1);
    const Tensor out = ops::linear_attention(r.input(), causal);
    const auto phi = [](double x) { return x > 0 ? x + 1 : std::exp(x); };
    for (std::int64_t b = 0; b < 2; ++b)
      for (std::int64_t h = 0; h < 2; ++h)
        for (std::int64_t i = 0; i < r.queries.length(b); ++i) {
          const std::int64_t first = r.queries.starts[static_cast<std::size_t>(b)];
          const std::int64_t end = causal ? i + 1 : r.queries.length(b);
          std::vector<double> numerator(5);
          double denominator = 0;
          for (std::int64_t j = 0; j < end; ++j) {
            double weight = 0;
            for (std::int64_t d = 0; d < 3; ++d)
              weight += phi(r.q.data<double>()[((first + i) * 2 + h) * 3 + d]) *
                        phi(r.k.data<double>()[(first + j) * 3 + d]);
            denominator += weight;
            for (std::int64_t d = 0; d < 5; ++d)
              numerator[static_cast<std::size_t>(d)] +=
                  weight * r.v.data<double>()[(first + j) * 5 + d];
          }
          for (std::int64_t d = 0; d < 5; ++d)
            EXPECT_NEAR(out.data<double>()[((first + i) * 2 + h) * 5 + d],
                        numerator[static_cast<std::size_t>(d)] / denominator, 1e-12);
        }
  }
}

TEST(LinearAttention, refuses_padded_input) {
  const Tensor q = Tensor::zeros({1, 4, 2, 3});
  EXPECT_THROW(ops::linear_attention({q, q, q}, true), UnsupportedError);
}
