// Token dropout hides the share that was asked for, and the same tokens whenever a step is done
// again.
#include "train/token_dropout.h"

#include <algorithm>
#include <deque>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "qkv/error.h"

#include "support/files.h"

using namespace qkv;
using train::TokenDropout;

namespace {

Tokenizer characters() {
  TokenizerOptions options;
  options.kind = TokenizerKind::kChar;
  options.min_frequency = 1;
  return Tokenizer::train(std::vector<std::string>{"abcdefghijklmnopqrstuvwxyz"}, options);
}

std::vector<Sample> samples(const Tokenizer& tokenizer, int count) {
  std::vector<Sample> out(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i].ids = tokenizer.encode("thequickbrownfoxjumpsoverthelazydog").ids;
    out[i].index = static_cast<std::int64_t>(i);
  }
  return out;
}

std::vector<const Sample*> pointers(const std::vector<Sample>& all) {
  std::vector<const Sample*> out;
  for (const Sample& sample : all) out.push_back(&sample);
  return out;
}

}  // namespace

TEST(TokenDropout, hides_the_share_that_was_asked_for_and_no_special_token) {
  const Tokenizer tokenizer = characters();
  const std::vector<Sample> all = samples(tokenizer, 2000);
  const TokenDropout dropout(0.15, tokenizer, 3);
  std::deque<Sample> kept;
  const auto seen = dropout.hide(pointers(all), 7, kept);
  ASSERT_EQ(seen.size(), all.size());
  double hidden = 0, total = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto &before = all[i].ids, &after = seen[i]->ids;
    ASSERT_EQ(after.size(), before.size());
    EXPECT_EQ(seen[i]->index, all[i].index);
    EXPECT_EQ(after.front(), before.front());  // [CLS]
    EXPECT_EQ(after.back(), before.back());    // [SEP]
    for (std::size_t t = 1; t + 1 < before.size(); ++t) {
      EXPECT_TRUE(after[t] == before[t] || after[t] == *tokenizer.special_id("mask"));
      hidden += after[t] != before[t] ? 1 : 0;
      total += 1;
    }
  }
  EXPECT_NEAR(hidden / total, 0.15, 0.01);  // seven deviations of the mean of 70 000 draws
}

TEST(TokenDropout, depends_on_seed_step_and_sample_alone) {
  const Tokenizer tokenizer = characters();
  const std::vector<Sample> all = samples(tokenizer, 5);
  const auto seen = [&](std::uint64_t seed, std::int64_t step, std::vector<const Sample*> members) {
    std::deque<Sample> kept;
    std::vector<std::vector<std::int32_t>> ids;
    for (const Sample* s : TokenDropout(0.3, tokenizer, seed).hide(members, step, kept))
      ids.push_back(s->ids);
    return ids;
  };
  const auto whole = seen(1, 4, pointers(all));
  EXPECT_EQ(whole, seen(1, 4, pointers(all)));
  EXPECT_EQ(whole[3], seen(1, 4, {&all[3]})[0]);
  EXPECT_NE(whole[0], whole[1]);
  EXPECT_NE(whole, seen(1, 5, pointers(all)));
  EXPECT_NE(whole, seen(2, 4, pointers(all)));
}

TEST(TokenDropout, off_gives_the_samples_themselves) {
  const Tokenizer tokenizer = characters();
  const std::vector<Sample> all = samples(tokenizer, 3);
  std::deque<Sample> kept;
  EXPECT_EQ(TokenDropout().hide(pointers(all), 1, kept), pointers(all));
  EXPECT_EQ(TokenDropout(0, tokenizer, 1).hide(pointers(all), 1, kept), pointers(all));
  EXPECT_TRUE(kept.empty());
}

TEST(TokenDropout, a_tokenizer_without_a_mask_token_is_refused) {
  const qkv::testing::TempFolder folder;
  folder.write("tokenizer.json",
               R"({"version":"1.0","added_tokens":[],"normalizer":null,"pre_tokenizer":null,
                   "post_processor":null,"decoder":null,
                   "model":{"type":"WordPiece","unk_token":"u","continuing_subword_prefix":"##",
                            "max_input_chars_per_word":100,"vocab":{"u":0,"a":1}}})");
  const Tokenizer tokenizer = Tokenizer::load(folder.path());
  EXPECT_NO_THROW(TokenDropout(0, tokenizer, 1));
  EXPECT_THROW(TokenDropout(0.1, tokenizer, 1), ConfigError);
}
