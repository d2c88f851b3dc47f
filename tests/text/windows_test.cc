// Pairs, truncation with windows, padding.
#include <algorithm>
#include <set>

#include <gtest/gtest.h>

#include "qkv/error.h"
#include "qkv/tokenizer.h"

#include "base/json.h"
#include "support/files.h"
#include "text/post_processor.h"

namespace {
using namespace qkv;
using qkv::testing::TempFolder;
using Ids = std::vector<std::int32_t>;

// Words w0 to w299 have the ids 10 and on; [PAD] 0, [CLS] 2, [SEP] 3.
Tokenizer word_tokenizer() {
  Json json = Json::parse(
      R"({"pre_tokenizer":{"type":"WhitespaceSplit"},
          "truncation":{"direction":"Left","max_length":7,"strategy":"OnlyFirst","stride":2},
          "padding":{"strategy":{"Fixed":9},"direction":"Left","pad_to_multiple_of":4,"pad_id":1,"pad_type_id":1,"pad_token":"[P]"},
          "model":{"type":"WordLevel","unk_token":"[UNK]","vocab":{"[PAD]":0,"[P]":1,"[CLS]":2,"[SEP]":3,"[UNK]":4}}})");
  for (int i = 0; i < 300; ++i) json["model"]["vocab"]["w" + std::to_string(i)] = 10 + i;
  json["post_processor"] = text::template_json(2, 3);
  const TempFolder folder;
  return Tokenizer::load(folder.write("tokenizer.json", json.dump()));
}

std::string words(int count, int first = 0) {
  std::string text;
  for (int i = 0; i < count; ++i) text += "w" + std::to_string(first + i) + " ";
  return text;
}

EncodeOptions cut(std::int64_t length, std::int64_t stride = 0) {
  EncodeOptions options;
  options.truncation = Truncation{length, stride, TruncationStrategy::kLongestFirst, false};
  return options;
}

std::int64_t count_of(const Encoding& encoding, std::int32_t sequence) {
  return std::count(encoding.sequence_ids.begin(), encoding.sequence_ids.end(), sequence);
}

TEST(Windows, b51_the_longer_text_of_a_pair_is_cut_first) {
  const Tokenizer tokenizer = word_tokenizer();
  const Encoding e = tokenizer.encode_pair(words(125), words(130), cut(128));
  EXPECT_EQ(e.ids.size(), 128u);
  EXPECT_EQ(count_of(e, 0), 62);
  EXPECT_EQ(count_of(e, 1), 63);
  const Encoding turned = tokenizer.encode_pair(words(130), words(125), cut(128));
  EXPECT_EQ(count_of(turned, 0), 63);
  EXPECT_EQ(count_of(turned, 1), 62);
  const Encoding only_long = tokenizer.encode_pair(words(5), words(30), cut(18));
  EXPECT_EQ(count_of(only_long, 0), 5);
  EXPECT_EQ(count_of(only_long, 1), 10);
}

TEST(Windows, b51_limits_below_the_special_tokens_are_errors) {
  const Tokenizer tokenizer = word_tokenizer();
  EXPECT_EQ(tokenizer.encode_pair("w1 w2", "w3", cut(3)).ids, (Ids{2, 3, 3}));
  for (const std::int64_t limit : {2, 1, 0, -1}) {
    EXPECT_THROW(tokenizer.encode_pair("w1 w2", "w3", cut(limit)), ArgumentError) << limit;
  }
  EXPECT_THROW(tokenizer.encode("w1", cut(1)), ArgumentError);
  EncodeOptions plain = cut(1);
  plain.add_special_tokens = false;
  EXPECT_EQ(tokenizer.encode("w1 w2", plain).ids, Ids{11});
  EXPECT_EQ(tokenizer.encode_pair("w1 w2", "w3", plain).ids.size(), 1u);
}

TEST(Windows, b51_a_stride_must_be_below_the_room) {
  const Tokenizer tokenizer = word_tokenizer();
  for (const std::int64_t stride : {8, 9, -1}) {
    EXPECT_THROW(tokenizer.encode(words(30), cut(10, stride)), ArgumentError) << stride;
  }
  const Encoding e = tokenizer.encode(words(30), cut(10, 7));
  EXPECT_EQ(e.ids.size(), 10u);
  EXPECT_EQ(e.overflowing.size(), 22u);  // one token further each
}

TEST(Windows, b51_type_ids_and_padding_of_a_pair) {
  EncodeOptions options;
  options.padding = Padding{8, 0, false, 0, 0, "[PAD]"};
  const Encoding e = word_tokenizer().encode_pair("w0 w1", "w2", options);
  EXPECT_EQ(e.ids, (Ids{2, 10, 11, 3, 12, 3, 0, 0}));
  EXPECT_EQ(e.type_ids, (Ids{0, 0, 0, 0, 1, 1, 0, 0}));
  EXPECT_EQ(e.attention_mask, (Ids{1, 1, 1, 1, 1, 1, 0, 0}));
  EXPECT_EQ(e.sequence_ids, (Ids{-1, 0, 0, -1, 1, -1, -1, -1}));
  EXPECT_EQ(e.tokens.back(), "[PAD]");
  EXPECT_EQ(e.offsets.size(), 8u);
}

TEST(Windows, b51_windows_cover_every_token) {
  const Tokenizer tokenizer = word_tokenizer();
  for (const bool left : {false, true}) {
    for (const int count : {8, 9, 17, 30}) {
      EncodeOptions options = cut(10, 3);
      options.truncation->left = left;
      const Encoding e = tokenizer.encode(words(count), options);
      std::set<std::int32_t> seen(e.ids.begin(), e.ids.end());
      for (const Encoding& window : e.overflowing) {
        EXPECT_LE(window.ids.size(), 10u);
        seen.insert(window.ids.begin(), window.ids.end());
      }
      EXPECT_EQ(seen.size(), static_cast<std::size_t>(count) + 2) << left << count;
      EXPECT_EQ(e.ids[1], left ? 10 + std::max(0, count - 8) : 10);
      EXPECT_EQ(e.ids[e.ids.size() - 2], left ? 9 + count : 9 + std::min(8, count));
    }
  }
  EncodeOptions second = cut(12, 2);
  second.truncation->strategy = TruncationStrategy::kOnlySecond;
  const Encoding e = tokenizer.encode_pair(words(3), words(20, 100), second);
  std::set<std::int32_t> seen;
  seen.insert(e.ids.begin(), e.ids.end());
  for (const Encoding& window : e.overflowing) {
    EXPECT_EQ(count_of(window, 0), 3);
    seen.insert(window.ids.begin(), window.ids.end());
  }
  EXPECT_EQ(seen.size(), 25u);
  second.truncation->max_length = 6;
  EXPECT_THROW(tokenizer.encode_pair(words(3), words(20), second), DataError);
}

TEST(Windows, settings_of_the_file_are_shown_and_not_applied) {
  const Tokenizer tokenizer = word_tokenizer();
  ASSERT_TRUE(tokenizer.truncation() && tokenizer.padding());
  EXPECT_EQ(tokenizer.truncation()->max_length, 7);
  EXPECT_EQ(tokenizer.truncation()->stride, 2);
  EXPECT_EQ(tokenizer.truncation()->strategy, TruncationStrategy::kOnlyFirst);
  EXPECT_TRUE(tokenizer.truncation()->left);
  EXPECT_EQ(tokenizer.encode(words(30)).ids.size(), 32u);
  EncodeOptions options;
  options.truncation = tokenizer.truncation();
  options.padding = tokenizer.padding();
  const Encoding e = tokenizer.encode(words(30), options);
  EXPECT_EQ(e.ids, (Ids{1, 1, 1, 1, 1, 2, 35, 36, 37, 38, 39, 3}));  // 9, rounded up to 12
  EXPECT_EQ(e.type_ids[0], 1);
  EXPECT_EQ(e.tokens[0], "[P]");
}

TEST(Windows, a_batch_is_padded_to_its_longest_text) {
  const Tokenizer tokenizer = word_tokenizer();
  const std::vector<std::string> texts = {words(1), words(5), ""};
  EncodeOptions options;
  options.padding = Padding{};
  const std::vector<Encoding> batch = tokenizer.encode_batch(texts, options);
  ASSERT_EQ(batch.size(), 3u);
  for (const Encoding& e : batch) EXPECT_EQ(e.ids.size(), 7u);
  EXPECT_EQ(batch[2].ids, (Ids{2, 3, 0, 0, 0, 0, 0}));
  EXPECT_EQ(tokenizer.encode_batch(texts).at(1).ids, tokenizer.encode(texts[1]).ids);
  const std::vector<std::string> bad = {"w1", "\xFF"};
  EXPECT_THROW(tokenizer.encode_batch(bad), DataError);
}

TEST(Windows, b54_broken_bytes_are_replaced_where_asked) {
  const Tokenizer tokenizer = word_tokenizer();
  EncodeOptions options;
  options.replace_invalid = true;
  const Encoding e = tokenizer.encode("w1 \xF0\x9F\x98 w2\xC0\x80", options);
  EXPECT_EQ(e.ids, (Ids{2, 11, 4, 4, 3}));
  EXPECT_EQ(e.offsets[2], (std::pair<std::int64_t, std::int64_t>{3, 4}));
  EXPECT_EQ(e.offsets[3], (std::pair<std::int64_t, std::int64_t>{5, 9}));
}

}  // namespace
