#include "infer/beam_search.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.h"
#include "infer/generate.h"
#include "infer/stub_model.h"

using namespace qkv;
using namespace qkv::infer;
using namespace qkv::testing;

namespace {

using Ids = std::vector<std::int32_t>;

std::vector<float> hashed(const Ids& tokens) {
  std::uint64_t key = 17;
  for (const std::int32_t id : tokens) key = hash_pair(key, static_cast<std::uint64_t>(id) + 1);
  Random random(key);
  std::vector<float> logits;
  for (int i = 0; i < 5; ++i) logits.push_back(static_cast<float>(1.5 * random.normal()));
  return logits;
}

LanguageModel::Facts facts(Ids ends) {
  LanguageModel::Facts f;
  f.vocabulary = 5;
  f.end_ids = std::move(ends);
  return f;
}

// The best text of exactly `length` tokens by trying all of them.
double exhaustive(const Ids& prompt, std::int64_t length, Ids& best) {
  double best_sum = -1e30;
  const auto total = static_cast<std::int64_t>(std::pow(5, length));
  for (std::int64_t code = 0; code < total; ++code) {
    Ids tokens = prompt;
    double sum = 0;
    for (std::int64_t i = 0, rest = code; i < length; ++i, rest /= 5) {
      const std::vector<float> logits = hashed(tokens);
      const auto id = static_cast<std::int32_t>(rest % 5);
      sum += static_cast<double>(logits[static_cast<std::size_t>(id)]) - log_sum_exp(logits);
      tokens.push_back(id);
    }
    if (sum > best_sum) {
      best_sum = sum;
      best.assign(tokens.begin() + static_cast<std::ptrdiff_t>(prompt.size()), tokens.end());
    }
  }
  return best_sum;
}

}  // namespace

TEST(BeamSearch, one_beam_is_greedy) {
  const StubModel model(facts({4}), hashed);
  for (std::int32_t p = 0; p < 5; ++p) {
    BeamOptions options;
    options.beams = 1;
    options.max_new_tokens = 7;
    const std::vector<Hypothesis> best = beam_search(model, Ids{p}, options);
    GenerateOptions greedy;
    greedy.max_new_tokens = 7;
    const std::vector<Ids> prompts{{p}};
    EXPECT_EQ(best[0].ids, generate(model, prompts, greedy)[0].ids) << p;
  }
  EXPECT_EQ(model.counts.open, 0);
}

// With as many beams as there are prefixes nothing is pruned.
TEST(BeamSearch, wide_enough_it_is_exhaustive) {
  const StubModel model(facts({}), hashed);
  for (std::int32_t p = 0; p < 3; ++p) {
    BeamOptions options;
    options.beams = 5;
    options.max_new_tokens = 2;
    options.length_penalty = 0;
    Ids best;
    const double sum = exhaustive({p, 1}, 2, best);
    const std::vector<Hypothesis> found = beam_search(model, Ids{p, 1}, options);
    EXPECT_EQ(found[0].ids, best);
    EXPECT_NEAR(found[0].score, sum, 1e-5);
    EXPECT_NEAR(found[0].logprobs[0] + found[0].logprobs[1], sum, 1e-5);
  }
}

TEST(BeamSearch, scores_are_divided_by_length) {
  const StubModel model(facts({4}), hashed);
  BeamOptions options;
  options.beams = 4;
  options.results = 4;
  options.max_new_tokens = 6;
  for (const double penalty : {0.0, 1.0, 2.0}) {
    options.length_penalty = penalty;
    const std::vector<Hypothesis> all = beam_search(model, Ids{1, 2}, options);
    ASSERT_EQ(all.size(), 4U);
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (i > 0) {
        EXPECT_GE(all[i - 1].score, all[i].score);
      }
      Ids tokens{1, 2};
      double sum = 0;
      Ids ids = all[i].ids;
      if (all[i].ended) ids.push_back(4);
      for (const std::int32_t id : ids) {
        const std::vector<float> logits = hashed(tokens);
        sum += static_cast<double>(logits[static_cast<std::size_t>(id)]) - log_sum_exp(logits);
        tokens.push_back(id);
      }
      EXPECT_NEAR(all[i].score, sum / std::pow(ids.size(), penalty), 1e-5);
    }
  }
}

TEST(BeamSearch, refuses_what_cannot_be) {
  const StubModel model(facts({4}), hashed);
  BeamOptions options;
  options.beams = 6;
  EXPECT_THROW(beam_search(model, Ids{1}, options), ArgumentError);
  options.beams = 2;
  options.results = 3;
  EXPECT_THROW(beam_search(model, Ids{1}, options), ArgumentError);
  options.results = 1;
  EXPECT_THROW(beam_search(model, Ids{}, options), DataError);
  EXPECT_EQ(model.counts.calls, 0);
}
