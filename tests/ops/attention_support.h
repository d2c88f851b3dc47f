// Random attention problems for the tests: ragged or padded, every kind of stride and mask.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "qkv/attention.h"
#include "qkv/layout.h"

#include "base/random.h"
#include "support/tensors.h"

namespace qkv::testing {

inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// max |a - b| / max(|b|, 1), infinite when one is not finite where the other is. The inputs are of
// order 1: gradients that vanish by cancellation (one visible key) are held to the same rounding.
inline double scaled_difference(const Tensor& a, const Tensor& b) {
  const std::vector<double> x = values_of(a), y = values_of(b);
  if (x.size() != y.size()) return INFINITY;
  double difference = 0, largest = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (x[i] == y[i] || (std::isnan(x[i]) && std::isnan(y[i]))) continue;
    if (!std::isfinite(x[i]) || !std::isfinite(y[i])) return INFINITY;
    difference = std::max(difference, std::fabs(x[i] - y[i]));
  }
  for (const double v : y)
    if (std::isfinite(v)) largest = std::max(largest, std::fabs(v));
  return difference / std::max(largest, 1.0);
}

inline bool equal_bits(const Tensor& a, const Tensor& b) {
  const Tensor x = a.contiguous(), y = b.contiguous();
  return x.shape() == y.shape() && x.dtype() == y.dtype() &&
         std::memcmp(x.raw(), y.raw(), x.nbytes()) == 0;
}

inline Tensor random_tensor(const Shape& shape, DType dtype, std::uint64_t seed) {
  Tensor tensor = Tensor::empty(shape, DType::kFloat64);
  Random random(seed);
  for (std::int64_t i = 0; i < tensor.numel(); ++i) tensor.data<double>()[i] = random.normal();
  return tensor.to(dtype);
}

// out, dq, dk, dv of one problem with dout given.
struct AttentionRun {
  ops::AttentionResult result;
  ops::AttentionGradients gradients;
};

inline AttentionRun run_attention(const ops::AttentionInput& input,
                                  const ops::AttentionOptions& options, const Tensor& dout) {
  AttentionRun run;
  run.result = ops::attention(input, options);
  const DType dtype = input.q.dtype();
  run.gradients = {Tensor::empty(input.q.shape(), dtype), Tensor::empty(input.k.shape(), dtype),
                   Tensor::empty(input.v.shape(), dtype)};
  for (const Tensor& gradient : {run.gradients.dq, run.gradients.dk, run.gradients.dv})
    gradient.fill(NAN);  // everything must be written
  ops::attention_backward(dout, input, run.result, options, run.gradients);
  return run;
}

// A padded single-head problem with head size 1: q all zero unless given, k all zero unless given.
struct Tiny {
  std::vector<float> q, k, v;
  ops::AttentionOptions options;

  Tiny(std::int64_t queries, std::vector<float> values)
      : q(static_cast<std::size_t>(queries), 0.0f), k(values.size(), 0.0f), v(std::move(values)) {
    options.scale = 1.0;
  }
  static Tensor column(const std::vector<float>& x) {
    return Tensor::from<float>(x, {1, static_cast<std::int64_t>(x.size()), 1, 1});
  }
  ops::AttentionInput input() const { return {column(q), column(k), column(v), nullptr, nullptr}; }
  std::vector<double> out() const { return values_of(ops::attention(input(), options).out); }
  AttentionRun run() const {  // upstream gradient of ones
    const Tensor dout = Tensor::empty({1, static_cast<std::int64_t>(q.size()), 1, 1});
    dout.fill(1);
    return run_attention(input(), options, dout);
  }
};

inline void expect_values(const std::vector<double>& got, const std::vector<double>& expected,
                          double tolerance = 1e-6) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], tolerance) << i;
}
inline void expect_values(const Tensor& got, const std::vector<double>& expected,
                          double tolerance = 1e-6) {
  expect_values(values_of(got), expected, tolerance);
}

// The backends that take a plain fp32 problem in this process.
inline std::vector<ops::AttentionBackend> fp32_backends() {
  std::vector<ops::AttentionBackend> backends = {ops::AttentionBackend::kNaive};
  const auto choices = ops::explain_attention(Tiny(1, {1}).input(), {});
  if (choices.back().name != "naive") backends.push_back(ops::AttentionBackend::kFlash);
  return backends;
}

}  // namespace qkv::testing
