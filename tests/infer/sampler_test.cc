#include "infer/sampler.h"

#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "qkv/error.h"

#include "base/random.h"
#include "support/errors.h"

using namespace qkv;
using namespace qkv::infer;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> logs(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  logits.reserve(probabilities.size());
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p)));
  return logits;
}

SamplingOptions drawing() {
  SamplingOptions options;
  options.temperature = 1;
  return options;
}

std::vector<std::int32_t> kept(const std::vector<float>& logits, const SamplingOptions& options) {
  std::vector<std::int32_t> ids;
  for (const Candidate& c : distribution(logits, options)) ids.push_back(c.id);
  return ids;
}

std::vector<std::int32_t> kept_by_p(const std::vector<float>& logits, double p) {
  SamplingOptions options = drawing();
  options.top_p = p;
  return kept(logits, options);
}

using Ids = std::vector<std::int32_t>;

// Chi-square of `draws` draws against the distribution; its degrees of freedom are one less than
// the candidates.
double chi_square(const std::vector<float>& logits, const SamplingOptions& options, int draws,
                  std::uint64_t seed) {
  std::map<std::int32_t, int> counts;
  Random random(seed);
  for (int i = 0; i < draws; ++i) ++counts[sample(logits, options, random.uniform())];
  double chi = 0;
  std::size_t seen = 0;
  for (const Candidate& c : distribution(logits, options)) {
    const double expected = c.probability * draws;
    const auto it = counts.find(c.id);
    const double got = it == counts.end() ? 0 : it->second;
    seen += it == counts.end() ? 0 : 1;
    chi += (got - expected) * (got - expected) / expected;
  }
  EXPECT_EQ(seen, counts.size()) << "a token outside the distribution was drawn";
  return chi;
}

}  // namespace

TEST(Sampler, b65_nucleus_top_k_and_temperature) {
  const std::vector<float> plain = logs({0.5, 0.3, 0.15, 0.05});
  EXPECT_EQ(kept_by_p(plain, 0.6), (Ids{0, 1}));
  EXPECT_EQ(kept_by_p(plain, 0.8), (Ids{0, 1}));
  EXPECT_EQ(kept_by_p(plain, 0.85), (Ids{0, 1, 2}));
  EXPECT_EQ(kept_by_p(plain, 1), (Ids{0, 1, 2, 3}));
  EXPECT_EQ(kept_by_p(plain, 1e-8), (Ids{0}));
  EXPECT_EQ(kept_by_p(plain, 0), (Ids{0}));
  const std::vector<float> shuffled = logs({0.15, 0.5, 0.05, 0.3});
  EXPECT_EQ(kept_by_p(shuffled, 0.8), (Ids{1, 3}));
  EXPECT_EQ(kept_by_p(shuffled, 0.85), (Ids{1, 3, 0}));
  EXPECT_EQ(kept_by_p(logs({0.25, 0.25, 0.25, 0.25}), 0.5), (Ids{0, 1}));
  SamplingOptions options = drawing();
  options.top_k = 0;
  EXPECT_EQ(kept(shuffled, options).size(), 4U);
  options.top_k = 1;
  EXPECT_EQ(kept(shuffled, options), (Ids{1}));
  options.top_k = 100;
  EXPECT_EQ(kept(shuffled, options).size(), 4U);
  const std::vector<float> wild{-1e4F, 1e4F, 1e4F, -1e4F};
  options.temperature = 0;
  EXPECT_EQ(kept(wild, options), (Ids{1}));
  options.temperature = 1e-6;
  const std::vector<Candidate> sharp = distribution(wild, options);
  ASSERT_EQ(sharp.size(), 2U);
  EXPECT_NEAR(sharp[0].probability, 0.5, 1e-12);
  for (const float bad : {std::nanf(""), kInfinity}) {
    const std::vector<float> broken{0, bad, 1};
    EXPECT_THROW(sample(broken, drawing(), 0.5), NumericError);
    EXPECT_THROW(argmax(broken), NumericError);
    EXPECT_THROW(log_sum_exp(broken), NumericError);
  }
  EXPECT_THROW(argmax(std::vector<float>{-kInfinity, -kInfinity}), NumericError);
}

TEST(Sampler, b66_penalties) {
  const std::vector<float> logits{2, -2, 1, 0};
  const auto penalised = [&](const Ids& prompt, const Ids& continuation,
                             const SamplingOptions& options) {
    std::vector<float> adjusted = logits;
    adjust_logits(adjusted, prompt, continuation, options);
    return adjusted;
  };
  SamplingOptions options;
  options.repetition_penalty = 2;
  EXPECT_EQ(penalised({0, 1}, {1, 1}, options), (std::vector<float>{1, -4, 1, 0}));
  EXPECT_EQ(penalised({0}, {}, options), (std::vector<float>{1, -2, 1, 0}));  // no padding, no id 2
  options.repetition_penalty = 1;
  EXPECT_FALSE(options.adjusts());
  EXPECT_EQ(penalised({0, 1}, {1, 1}, options), logits);
  options.repetition_penalty = 0;
  EXPECT_THROW(options.check(4), ArgumentError);
  options.repetition_penalty = 1;
  options.presence_penalty = 0.5;
  options.frequency_penalty = 0.25;
  EXPECT_EQ(penalised({0, 0, 3}, {1, 1, 2}, options), (std::vector<float>{2, -3, 0.25, 0}));
}

TEST(Sampler, bias_and_bans) {
  SamplingOptions options;
  options.logit_bias = {{0, 3.5}, {1, -std::numeric_limits<double>::infinity()}};
  options.banned = {3};
  options.check(4);
  std::vector<float> logits{0, 9, 1, 9};
  adjust_logits(logits, {}, {}, options);
  EXPECT_EQ(logits, (std::vector<float>{3.5, -kInfinity, 1, -kInfinity}));
  EXPECT_EQ(argmax(logits), 0);
  options.banned = {4};
  EXPECT_THROW(options.check(4), ArgumentError);
  options.banned = {};
  options.logit_bias = {{-1, 1.0}};
  EXPECT_THROW(options.check(4), ArgumentError);
}

TEST(Sampler, min_p_is_relative_to_the_best) {
  SamplingOptions options = drawing();
  options.min_p = 0.29;
  EXPECT_EQ(kept(logs({0.5, 0.3, 0.15, 0.05}), options), (Ids{0, 1, 2}));
  options.min_p = 1;
  EXPECT_EQ(kept(logs({0.5, 0.3, 0.15, 0.05}), options), (Ids{0}));
}

// Nucleus acts on what top-k has left: [.5, .3, .15] / .95 has .842 before the third.
TEST(Sampler, filters_follow_each_other) {
  SamplingOptions options = drawing();
  options.top_k = 3;
  options.top_p = 0.83;
  EXPECT_EQ(kept(logs({0.5, 0.3, 0.15, 0.05}), options), (Ids{0, 1}));
  const std::vector<Candidate> two = distribution(logs({0.5, 0.3, 0.15, 0.05}), options);
  EXPECT_NEAR(two[0].probability, 0.625, 1e-6);
}

TEST(Sampler, draws_follow_the_distribution) {
  std::vector<float> logits;
  Random random(5);
  for (int i = 0; i < 40; ++i) logits.push_back(static_cast<float>(random.normal()));
  SamplingOptions options = drawing();
  // 99.99 % quantiles: 39 degrees of freedom 80.4, 9 degrees 33.7.
  EXPECT_LT(chi_square(logits, options, 100000, 1), 80.4);
  options.temperature = 0.6;
  EXPECT_LT(chi_square(logits, options, 100000, 2), 80.4);
  options.top_k = 10;
  EXPECT_LT(chi_square(logits, options, 100000, 3), 33.7);
  options.top_k = 0;
  options.top_p = 0.7;
  EXPECT_LT(chi_square(logits, options, 100000, 4), 80.4);
  // The test can fail: draws at another temperature do not fit.
  std::vector<float> flat = logits;
  for (float& x : flat) x *= 0.9F;
  double chi = 0;
  std::map<std::int32_t, int> counts;
  for (int i = 0; i < 100000; ++i) ++counts[sample(flat, drawing(), random.uniform())];
  for (const Candidate& c : distribution(logits, drawing())) {
    const double expected = c.probability * 100000;
    chi += (counts[c.id] - expected) * (counts[c.id] - expected) / expected;
  }
  EXPECT_GT(chi, 80.4);
}

TEST(Sampler, large_vocabularies_are_sorted_as_far_as_needed) {
  std::vector<float> logits;
  Random random(7);
  for (int i = 0; i < 50000; ++i) logits.push_back(static_cast<float>(random.normal()));
  SamplingOptions options = drawing();
  options.top_p = 0.9;
  const std::vector<Candidate> some = distribution(logits, options);
  double sum = 0;
  for (std::size_t i = 0; i < some.size(); ++i) {
    sum += some[i].probability;
    if (i > 0) {
      EXPECT_GE(some[i - 1].probability, some[i].probability);
    }
  }
  EXPECT_NEAR(sum, 1, 1e-9);
  EXPECT_GT(some.size(), 20000U);
  EXPECT_LT(some.size(), 45000U);
  const float first = logits[static_cast<std::size_t>(some[0].id)];
  EXPECT_EQ(some[0].id, argmax(logits));
  for (const float x : logits) EXPECT_LE(x, first);
}

TEST(Sampler, refuses_options_out_of_range) {
  const auto refused = [](const char* word, auto set) {
    SamplingOptions options;
    set(options);
    const std::string message = qkv::testing::message_of<ArgumentError>([&] { options.check(10); });
    EXPECT_NE(message.find(word), std::string::npos) << message;
  };
  refused("temperature", [](SamplingOptions& o) { o.temperature = -1; });
  refused("temperature", [](SamplingOptions& o) { o.temperature = std::nan(""); });
  refused("top_k", [](SamplingOptions& o) { o.top_k = -1; });
  refused("top_p", [](SamplingOptions& o) { o.top_p = 2; });
  refused("top_p", [](SamplingOptions& o) { o.top_p = -1; });
  refused("min_p", [](SamplingOptions& o) { o.min_p = 1.5; });
  refused("repetition_penalty", [](SamplingOptions& o) { o.repetition_penalty = -1; });
  refused("frequency_penalty", [](SamplingOptions& o) { o.frequency_penalty = std::nan(""); });
  SamplingOptions hot;
  hot.temperature = 1e308;
  hot.check(10);
  EXPECT_NEAR(distribution(logs({0.5, 0.3, 0.2}), hot)[0].probability, 1.0 / 3, 1e-9);
}
