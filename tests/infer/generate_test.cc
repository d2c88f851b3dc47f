#include "infer/generate.h"

#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/json.h"
#include "base/random.h"
#include "infer/score.h"
#include "infer/stub_model.h"
#include "support/errors.h"

using namespace qkv;
using namespace qkv::infer;
using namespace qkv::testing;

namespace {

using Ids = std::vector<std::int32_t>;
using Prompts = std::vector<Ids>;

LanguageModel::Facts facts(std::int64_t vocabulary, Ids ends = {}) {
  LanguageModel::Facts f;
  f.vocabulary = vocabulary;
  f.end_ids = std::move(ends);
  return f;
}

// A prompt is one id that names a row of `rows`; the model says that row, then 9 for ever.
Script saying(std::vector<Ids> rows) {
  return [rows = std::move(rows)](const Ids& tokens) {
    const Ids& row = rows[static_cast<std::size_t>(tokens[0])];
    const std::size_t at = tokens.size() - 1;
    return pointing_at(at < row.size() ? row[at] : 9, 10);
  };
}

GenerateOptions up_to(std::int64_t tokens) {
  GenerateOptions options;
  options.max_new_tokens = tokens;
  return options;
}

// Logits that depend on every token of the stream.
std::vector<float> hashed(const Ids& tokens) {
  std::uint64_t key = 0;
  for (const std::int32_t id : tokens) key = hash_pair(key, static_cast<std::uint64_t>(id) + 1);
  Random random(key);
  std::vector<float> logits;
  for (int i = 0; i < 12; ++i) logits.push_back(static_cast<float>(2 * random.normal()));
  return logits;
}

}  // namespace

TEST(Generate, b68_rows_that_have_ended) {
  const StubModel model(facts(10, {2, 3}), saying({{5, 2, 7}, {5, 6, 3}, {5, 5, 5, 5, 5, 5}}));
  const Prompts prompts{{0}, {1}, {2}};
  const std::vector<Generated> results = generate(model, prompts, up_to(5));
  EXPECT_EQ(results[0].ids, (Ids{5}));
  EXPECT_EQ(results[1].ids, (Ids{5, 6}));
  EXPECT_EQ(results[2].ids, (Ids{5, 5, 5, 5, 5}));
  EXPECT_EQ(results[0].finish, FinishReason::kStop);
  EXPECT_EQ(results[1].finish, FinishReason::kStop);
  EXPECT_EQ(results[2].finish, FinishReason::kLength);
  // Three prompts, then one token of row 0, two of row 1, four of row 2: nothing for ended rows.
  EXPECT_EQ(model.counts.tokens, 3 + 1 + 2 + 4);
  EXPECT_EQ(model.counts.open, 0);
  for (const std::size_t row : {0U, 1U, 2U}) {
    const Prompts alone{prompts[row]};
    EXPECT_EQ(generate(model, alone, up_to(5))[0].ids, results[row].ids);
  }
}

TEST(Generate, b68_minimum_and_no_tokens) {
  const StubModel model(facts(10, {2, 3}), [](const Ids&) {
    std::vector<float> logits = pointing_at(2, 10);
    logits[3] = -1;
    logits[7] = -2;
    return logits;
  });
  GenerateOptions options = up_to(5);
  options.min_new_tokens = 3;
  EXPECT_EQ(generate(model, Prompts{{1}}, options)[0].ids, (Ids{7, 7, 7}));
  const Generated none = generate(model, Prompts{{1}}, up_to(0))[0];
  EXPECT_TRUE(none.ids.empty());
  EXPECT_EQ(none.finish, FinishReason::kLength);
  options.ignore_end = true;
  EXPECT_EQ(generate(model, Prompts{{1}}, options)[0].ids, (Ids{2, 2, 2, 2, 2}));
  options = up_to(5);
  options.end_ids = {7};
  options.sampling.banned = {2, 3};
  EXPECT_TRUE(generate(model, Prompts{{1}}, options)[0].ids.empty());
}

TEST(Generate, b69_head_wider_than_the_vocabulary) {
  const StubModel model(
      facts(5), [](const Ids&) { return std::vector<float>{-3, -3, -2.9F, -3, -3, 0, 0, 0}; });
  GenerateOptions options = up_to(1);
  options.logprobs = true;
  const Generated greedy = generate(model, Prompts{{1}}, options)[0];
  EXPECT_EQ(greedy.ids, (Ids{2}));
  const double total = 4 * std::exp(-3.0) + std::exp(-2.9);
  EXPECT_NEAR(greedy.logprobs[0], -2.9 - std::log(total), 1e-6);
  options.sampling.temperature = 1;
  for (const std::int64_t k : {0, 6}) {
    options.sampling.top_k = k;
    for (options.seed = 1; options.seed <= 1000; ++options.seed)
      ASSERT_LT(generate(model, Prompts{{1}}, options)[0].ids[0], 5);
  }
}

TEST(Generate, b22_context_limit) {
  LanguageModel::Facts limited = facts(10);
  limited.context = 16;
  const StubModel model(limited, [](const Ids&) { return pointing_at(4, 10); });
  const Generated last = generate(model, Prompts{Ids(15, 1)}, up_to(10))[0];
  EXPECT_EQ(last.ids, (Ids{4}));
  EXPECT_EQ(last.finish, FinishReason::kLength);
  EXPECT_EQ(model.counts.tokens, 15);  // the sixteenth is never looked up
  EXPECT_TRUE(generate(model, Prompts{Ids(16, 1)}, up_to(0))[0].ids.empty());
  const auto refused = [&](std::size_t length, std::int64_t wanted) {
    return message_of<DataError>([&] { generate(model, Prompts{Ids(length, 1)}, up_to(wanted)); });
  };
  const std::string message = refused(16, 1);
  EXPECT_NE(message.find("at most 16 together"), std::string::npos) << message;
  EXPECT_NE(message.find("prompt of 16"), std::string::npos) << message;
  refused(17, 0);
  refused(17, 5);
  EXPECT_EQ(model.counts.open, 0);
}

TEST(Generate, b22_empty_prompt) {
  const StubModel without(facts(10), [](const Ids& tokens) { return pointing_at(tokens[0], 10); });
  EXPECT_THROW(generate(without, Prompts{{}}, up_to(1)), DataError);
  LanguageModel::Facts begins = facts(10);
  begins.bos = 6;
  const StubModel with(begins, [](const Ids& tokens) { return pointing_at(tokens[0], 10); });
  EXPECT_EQ(generate(with, Prompts{{}}, up_to(2))[0].ids, (Ids{6, 6}));
}

TEST(Generate, b23_results_do_not_depend_on_the_batch) {
  const StubModel model(facts(12, {11}), hashed);
  for (const double temperature : {0.0, 1.0}) {
    GenerateOptions options = up_to(20);
    options.sampling.temperature = temperature;
    options.prefill_chunk = 3;
    Prompts prompts;
    for (std::int32_t p = 0; p < 9; ++p) prompts.emplace_back(static_cast<std::size_t>(p + 1), p);
    options.max_streams = 1;
    const std::vector<Generated> one = generate(model, prompts, options);
    for (const std::int64_t streams : {2, 4, 9}) {
      options.max_streams = streams;
      model.counts = {};
      const std::vector<Generated> many = generate(model, prompts, options);
      EXPECT_EQ(model.counts.most_open, streams);
      for (std::size_t p = 0; p < prompts.size(); ++p) EXPECT_EQ(many[p].ids, one[p].ids);
    }
  }
}

TEST(Generate, seeds) {
  const StubModel model(facts(12), hashed);
  GenerateOptions options = up_to(30);
  options.sampling.temperature = 1;
  const Ids first = generate(model, Prompts{{1}}, options)[0].ids;
  EXPECT_EQ(generate(model, Prompts{{1}}, options)[0].ids, first);
  options.seed = 1;
  EXPECT_NE(generate(model, Prompts{{1}}, options)[0].ids, first);
  const std::vector<Generated> twins = generate(model, Prompts{{1}, {1}}, options);
  EXPECT_NE(twins[0].ids, twins[1].ids);
}

TEST(Generate, text_stop_strings_and_streaming) {
  const std::vector<std::string> words{"a",        " b", " st", "op", "\xF0\x9F",
                                       "\x98\x80", ".",  "",    "",   ""};
  GenerateHooks hooks;
  hooks.bytes = [&](std::span<const std::int32_t> ids) {
    std::string text;
    for (const std::int32_t id : ids) text += words[static_cast<std::size_t>(id)];
    return text;
  };
  const StubModel model(facts(10, {9}), saying({{0, 4, 5, 1, 2, 3, 6}, {2, 1, 4}}));
  std::vector<std::string> streamed(2);
  hooks.on_text = [&](std::size_t index, std::string_view text) {
    EXPECT_EQ(find_invalid_utf8(text), std::string::npos);
    streamed[index] += text;
    return true;
  };
  GenerateOptions options = up_to(10);
  const std::vector<Generated> all = generate(model, Prompts{{0}, {1}}, options, hooks);
  EXPECT_EQ(all[0].text, "a😀 b stop.");
  EXPECT_EQ(all[1].text, " st b�");
  EXPECT_EQ(streamed[0], all[0].text);
  EXPECT_EQ(streamed[1], all[1].text);
  options.stop = {"stop", "zz"};
  streamed.assign(2, {});
  const std::vector<Generated> some = generate(model, Prompts{{0}, {1}}, options, hooks);
  EXPECT_EQ(some[0].text, "a😀 b ");
  EXPECT_EQ(some[0].finish, FinishReason::kStop);
  EXPECT_EQ(some[0].ids, (Ids{0, 4, 5, 1, 2, 3}));
  EXPECT_EQ(streamed[0], some[0].text);
  hooks.on_text = [](std::size_t, std::string_view text) { return text.find('b') == text.npos; };
  const Generated cancelled = generate(model, Prompts{{0}}, up_to(10), hooks)[0];
  EXPECT_EQ(cancelled.finish, FinishReason::kCancelled);
  EXPECT_EQ(cancelled.ids, (Ids{0, 4, 5, 1}));
  EXPECT_EQ(model.counts.open, 0);
}

TEST(Generate, refuses_before_any_work) {
  const StubModel model(facts(10), hashed);
  EXPECT_THROW(generate(model, Prompts{{10}}, up_to(1)), ArgumentError);
  EXPECT_THROW(generate(model, Prompts{{-1}}, up_to(1)), ArgumentError);
  EXPECT_THROW(generate(model, Prompts{{1}}, up_to(-1)), ArgumentError);
  GenerateOptions options = up_to(3);
  options.min_new_tokens = 4;
  EXPECT_THROW(generate(model, Prompts{{1}}, options), ArgumentError);
  options = up_to(3);
  options.stop = {"x"};
  EXPECT_THROW(generate(model, Prompts{{1}}, options), ArgumentError);
  EXPECT_EQ(model.counts.calls, 0);
  const StubModel broken(facts(3), [](const Ids&) { return std::vector<float>{0, NAN, 0}; });
  EXPECT_THROW(generate(broken, Prompts{{1}}, up_to(1)), NumericError);
}

// Token t has loss t^2 / 10 whatever came before, plus a constant, since these are no distribution.
TEST(Score, b88_windows_count_each_token_once) {
  std::vector<float> logits{-50};
  for (int t = 1; t < 10; ++t) logits.push_back(static_cast<float>(-t * t / 10.0));
  const StubModel model(facts(10), [&](const Ids&) { return logits; });
  const double constant = log_sum_exp(logits);
  const Ids ids{0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  ScoreOptions windows;
  windows.window = 4;
  windows.stride = 2;
  const Score whole = score(model, ids), cut = score(model, ids, windows);
  ASSERT_EQ(whole.tokens.size(), 9U);
  ASSERT_EQ(cut.tokens.size(), 9U);
  for (std::size_t i = 0; i < 9; ++i) EXPECT_EQ(whole.tokens[i].logprob, cut.tokens[i].logprob);
  EXPECT_NEAR(-cut.sum() / 9 - constant, 3.166667, 1e-5);
  EXPECT_NEAR(cut.perplexity() / std::exp(constant), 23.7283, 1e-3);
  EXPECT_THROW(score(model, Ids{1}), DataError);
}

TEST(Score, continuation_as_a_harness_counts_it) {
  LanguageModel::Facts f = facts(12);
  f.bos = 3;
  f.context = 9;
  const StubModel model(f, hashed);
  const Score all = score(model, Ids{3, 5, 7, 1});
  const Score part = score_continuation(model, Ids{3, 5}, Ids{7, 1});
  ASSERT_EQ(part.tokens.size(), 2U);
  EXPECT_EQ(part.tokens[0].logprob, all.tokens[1].logprob);
  EXPECT_NEAR(part.sum(), all.tokens[1].logprob + all.tokens[2].logprob, 1e-12);
  EXPECT_EQ(score_continuation(model, {}, Ids{5, 7, 1}).sum(), all.sum());
  // The greedy continuation knows that it is.
  const Ids greedy = generate(model, Prompts{{3, 5}}, up_to(4))[0].ids;
  EXPECT_TRUE(score_continuation(model, Ids{3, 5}, greedy).is_greedy());
  Ids other = greedy;
  other[3] = (other[3] + 1) % 12;
  EXPECT_FALSE(score_continuation(model, Ids{3, 5}, other).is_greedy());
  EXPECT_THROW(score(model, Ids(10, 1)), DataError);
  ScoreOptions small;
  small.chunk = 2;
  const Score chunked = score(model, Ids{3, 5, 7, 1}, small);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(chunked.tokens[i].logprob, all.tokens[i].logprob);
}
