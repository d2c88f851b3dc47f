// Positive random features: definition, error against softmax attention, extremes.
#include "ops/random_features.h"

#include <cstring>

#include "attention_support.h"

using namespace qkv;
using namespace qkv::testing;

namespace {

struct Ragged {
  RaggedLayout layout;
  Tensor q, k, v;
  ops::AttentionInput input() const { return {q, k, v, &layout, &layout}; }
};

Ragged ragged(const std::vector<std::int64_t>& lengths, DType dtype, std::int64_t d = 8) {
  Ragged r;
  r.layout = RaggedLayout::from_lengths(lengths);
  r.q = random_tensor({r.layout.tokens(), 4, d}, dtype, 1);
  r.k = random_tensor({r.layout.tokens(), 2, d}, dtype, 2);
  r.v = random_tensor({r.layout.tokens(), 2, 5}, dtype, 3);
  return r;
}

// ||a - b|| / ||b||.
double relative_error(const Tensor& a, const Tensor& b) {
  const std::vector<double> x = values_of(a), y = values_of(b);
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    difference += (x[i] - y[i]) * (x[i] - y[i]);
    size += y[i] * y[i];
  }
  return std::sqrt(difference / size);
}

}  // namespace

TEST(RandomFeatures, are_orthogonal_and_repeatable) {
  const Tensor w = ops::random_features(20, 8, 3, DType::kFloat64);
  const double* rows = w.data<double>();
  for (std::int64_t a = 0; a < 8; ++a)
    for (std::int64_t b = 0; b < a; ++b) {
      double dot = 0;
      for (std::int64_t d = 0; d < 8; ++d) dot += rows[a * 8 + d] * rows[b * 8 + d];
      EXPECT_NEAR(dot, 0, 1e-12);
    }
  EXPECT_TRUE(equal_bits(ops::random_features(20, 8, 3, DType::kFloat64), w));
  EXPECT_FALSE(equal_bits(ops::random_features(20, 8, 4, DType::kFloat64), w));
  double square = 0;  // of a normal vector: D
  const Tensor many = ops::random_features(2000, 8, 5, DType::kFloat64);
  for (const double x : values_of(many)) square += x * x;
  EXPECT_NEAR(square / 2000, 8, 0.5);
}

TEST(RandomFeatures, equal_their_definition) {
  const Ragged r = ragged({5, 0, 3}, DType::kFloat64);
  const Tensor w = ops::random_features(11, 8, 3, DType::kFloat64);
  const double scale = 0.4;
  const auto phi = [&](const Tensor& x, std::int64_t row) {
    std::vector<double> features;
    double square = 0;
    for (std::int64_t d = 0; d < 8; ++d)
      square += scale * x.data<double>()[row * 8 + d] * x.data<double>()[row * 8 + d];
    for (std::int64_t f = 0; f < 11; ++f) {
      double dot = 0;
      for (std::int64_t d = 0; d < 8; ++d)
        dot += std::sqrt(scale) * w.data<double>()[f * 8 + d] * x.data<double>()[row * 8 + d];
      features.push_back(std::exp(dot - square / 2));
    }
    return features;
  };
  for (const bool causal : {false, true}) {
    const Tensor out = ops::random_feature_attention(r.input(), w, {causal, scale});
    for (std::int64_t b = 0; b < 3; ++b)
      for (std::int64_t h = 0; h < 4; ++h)
        for (std::int64_t i = 0; i < r.layout.length(b); ++i) {
          const std::int64_t first = r.layout.starts[static_cast<std::size_t>(b)];
          const std::vector<double> query = phi(r.q, (first + i) * 4 + h);
          std::vector<double> sum(5);
          double total = 0;
          for (std::int64_t j = 0; j < (causal ? i + 1 : r.layout.length(b)); ++j) {
            const std::vector<double> key = phi(r.k, (first + j) * 2 + h / 2);
            double weight = 0;
            for (std::size_t f = 0; f < 11; ++f) weight += query[f] * key[f];
            total += weight;
            for (std::int64_t d = 0; d < 5; ++d)
              sum[static_cast<std::size_t>(d)] +=
                  weight * r.v.data<double>()[((first + j) * 2 + h / 2) * 5 + d];
          }
          for (std::int64_t d = 0; d < 5; ++d)
            EXPECT_NEAR(out.data<double>()[((first + i) * 4 + h) * 5 + d],
                        sum[static_cast<std::size_t>(d)] / total, 1e-12);
        }
  }
}

// The error falls with the root of the number of features: the table of docs/attention.md.
TEST(RandomFeatures, tend_to_softmax_attention) {
  const Ragged r = ragged({60, 30}, DType::kFloat32, 16);
  for (const bool causal : {false, true}) {
    ops::AttentionOptions options;
    options.scale = 0.1;
    if (causal) options.mask = Mask::causal();
    const Tensor exact = ops::attention(r.input(), options).out;
    const auto error = [&](std::int64_t count) {
      double sum = 0;
      for (std::uint64_t seed = 0; seed < 4; ++seed)
        sum += relative_error(ops::random_feature_attention(
                                  r.input(), ops::random_features(count, 16, seed, DType::kFloat32),
                                  {.causal = causal, .scale = 0.1}),
                              exact);
      return sum / 4;
    };
    const double few = error(64), many = error(4096);
    EXPECT_LT(many, few / 4);
    EXPECT_LT(many, 0.15);
  }
}

TEST(RandomFeatures, causal_output_has_no_bit_of_the_future) {
  const Ragged r = ragged({40}, DType::kFloat32);
  const Tensor w = ops::random_features(32, 8, 3, DType::kFloat32);
  const Tensor clean = ops::random_feature_attention(r.input(), w, {.causal = true});
  for (const Tensor& x : {r.k, r.v})
    for (std::int64_t t = 25; t < 40; ++t) x.narrow(0, t, 1).fill(t % 2 == 0 ? 40 : NAN);
  const Tensor dirty = ops::random_feature_attention(r.input(), w, {.causal = true});
  EXPECT_TRUE(equal_bits(dirty.narrow(0, 0, 25), clean.narrow(0, 0, 25)));
}

// Long rows would underflow or overflow as plain exponentials.
TEST(RandomFeatures, long_queries_and_keys_stay_finite) {
  for (const bool causal : {false, true}) {
    const Ragged r = ragged({30}, DType::kFloat32);
    for (const Tensor& x : {r.q, r.k})
      for (std::int64_t i = 0; i < x.numel(); ++i) x.data<float>()[i] *= i % 3 == 0 ? 40 : 15;
    const Tensor w = ops::random_features(32, 8, 3, DType::kFloat32);
    const Tensor out = ops::random_feature_attention(r.input(), w, {.causal = causal});
    const Tensor dout = random_tensor(out.shape(), DType::kFloat32, 7);
    const ops::AttentionGradients d{Tensor::empty(r.q.shape()), Tensor::empty(r.k.shape()),
                                    Tensor::empty(r.v.shape())};
    ops::random_feature_attention_backward(dout, r.input(), w, {.causal = causal}, d);
    for (const Tensor& x : {out, d.dq, d.dk, d.dv})
      for (const double value : values_of(x)) ASSERT_TRUE(std::isfinite(value));
  }
}

TEST(RandomFeatures, refuse_what_they_cannot_do) {
  const Ragged r = ragged({4}, DType::kFloat32);
  const Tensor w = ops::random_features(8, 8, 1, DType::kFloat32);
  EXPECT_THROW(ops::random_features(0, 8, 1, DType::kFloat32), ArgumentError);
  EXPECT_THROW(ops::random_feature_attention({r.q, r.k, r.v}, w, {}), UnsupportedError);
  EXPECT_THROW(ops::random_feature_attention(r.input(), w.to(DType::kFloat64), {}), ShapeError);
  EXPECT_THROW(
      ops::random_feature_attention(r.input(), ops::random_features(8, 7, 1, DType::kFloat32), {}),
      ShapeError);
  EXPECT_THROW(ops::random_feature_attention(r.input(), w, {.scale = -1.0}), ArgumentError);
}
