// From tables to samples: labels, limits, the split by hash.
#include "train/data.h"

#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "qkv/error.h"

#include "support/errors.h"
#include "support/tiny_task.h"
#include "train/batches.h"

using namespace qkv;
using namespace qkv::testing;
using namespace qkv::train;

namespace {

std::vector<TextRow> rows_of(const std::vector<std::pair<std::string, std::string>>& pairs) {
  std::vector<TextRow> out;
  for (const auto& [text, label] : pairs)
    out.push_back({text, label, static_cast<std::int64_t>(out.size()) + 2});
  return out;
}

Tokenizer letters() {
  const std::vector<std::string> texts = {"abcdefghij klmnop"};
  return Tokenizer::train(texts, {.kind = TokenizerKind::kChar, .min_frequency = 1});
}

}  // namespace

TEST(Labels, come_in_byte_order) {
  EXPECT_EQ(label_list(rows_of({{"a", "pear"}, {"b", "Apple"}, {"c", "pear"}, {"d", "fig"}}), "f"),
            (std::vector<std::string>{"Apple", "fig", "pear"}));
}

TEST(Labels, a_single_class_is_refused) {
  EXPECT_NE(message_of<DataError>([] {
              label_list(rows_of({{"a", "x"}, {"b", "x"}}), "train.csv");
            }).find("train.csv: expected at least two different labels, got only 'x'"),
            std::string::npos);
}

TEST(Labels, one_that_training_never_saw_is_named_with_its_line) {
  const std::string message = message_of<DataError>([] {
    label_indices(rows_of({{"a", "x"}, {"b", "z"}}), {"x", "y"}, "test.csv");
  });
  EXPECT_NE(message.find("test.csv:3: expected one of the 2 labels seen in training, got 'z'"),
            std::string::npos)
      << message;
}

TEST(Texts, longer_than_the_limit_are_refused_with_their_line) {
  const Tokenizer tokenizer = letters();
  const auto rows = rows_of({{"abc", "x"}, {"abcdefgh", "x"}});
  const std::string message =
      message_of<DataError>([&] { encode_texts(rows, tokenizer, {.max_length = 6}, "f.csv"); });
  EXPECT_NE(message.find("f.csv:3: expected at most 6 tokens, got 10"), std::string::npos)
      << message;
}

TEST(Texts, are_cut_only_when_asked_and_keep_their_closing_token) {
  const Tokenizer tokenizer = letters();
  const auto rows = rows_of({{"abc", "x"}, {"abcdefgh", "x"}});
  const EncodedTexts encoded =
      encode_texts(rows, tokenizer, {.max_length = 6, .truncate = true}, "f.csv");
  EXPECT_EQ(encoded.truncated, 1);
  ASSERT_EQ(encoded.ids[1].size(), 6u);
  EXPECT_EQ(encoded.ids[1].front(), *tokenizer.special_id("cls"));
  EXPECT_EQ(encoded.ids[1].back(), *tokenizer.special_id("sep"));
  EXPECT_EQ(encoded.ids[1][4], *tokenizer.token_id("d"));
  EXPECT_EQ(encoded.ids[0].size(), 5u);
}

TEST(Texts, b51_a_limit_that_leaves_no_room_is_refused) {
  const Tokenizer tokenizer = letters();
  const auto rows = rows_of({{"abcdefgh", "x"}});
  for (const std::int64_t limit : {2, 1}) {
    const std::string message = message_of<DataError>(
        [&] { encode_texts(rows, tokenizer, {.max_length = limit, .truncate = true}, "f.csv"); });
    EXPECT_NE(message.find("f.csv:2: expected a limit that leaves room for the text"),
              std::string::npos)
        << message;
  }
  EXPECT_EQ(
      encode_texts(rows, tokenizer, {.max_length = 3, .truncate = true}, "f.csv").ids[0].size(),
      3u);
}

TEST(Split, depends_on_the_text_alone) {
  std::vector<std::pair<std::string, std::string>> pairs;
  for (int i = 0; i < 400; ++i)
    pairs.emplace_back("text " + std::to_string(i % 200), i % 2 != 0 ? "a" : "b");
  auto rows = rows_of(pairs);
  std::reverse(pairs.begin(), pairs.end());
  auto reversed = rows_of(pairs);
  const auto texts = [](const std::vector<TextRow>& from) {
    std::set<std::string> out;
    for (const TextRow& row : from) out.insert(row.text);
    return out;
  };
  const auto taken = split_by_hash(rows, 0.2), other = split_by_hash(reversed, 0.2);
  EXPECT_EQ(texts(taken), texts(other));
  EXPECT_EQ(taken.size() + rows.size(), 400u);
  EXPECT_GT(taken.size(), 50u);
  EXPECT_LT(taken.size(), 110u);
  for (const std::string& text : texts(taken))
    EXPECT_EQ(texts(rows).count(text), 0u);  // twins stay together
  auto none = rows;
  EXPECT_TRUE(split_by_hash(none, 0).empty());
}

TEST(Split, leaves_no_label_without_training_texts) {
  for (int i = 0; i < 50; ++i) {  // whatever the hash of the only text of label y
    auto rows = rows_of({{"a", "x"}, {"b", "x"}, {"c", "x"}, {"only " + std::to_string(i), "y"}});
    const auto taken = split_by_hash(rows, 0.5);
    for (const TextRow& row : taken) EXPECT_NE(row.label, "y");
  }
}

TEST(TrainData, a_label_only_in_validation_or_test_is_refused) {
  const TinyTask task;
  task.folder.write("validation.csv", "text,label\nI see the pink car,pink\n");
  const std::string message =
      message_of<DataError>([&] { load_train_data(task.config(), {.max_length = 64}); });
  EXPECT_NE(message.find("validation.csv:2"), std::string::npos) << message;
  EXPECT_NE(message.find("'pink'"), std::string::npos) << message;
}

TEST(BatchStream, b85_goes_on_from_any_cursor) {
  std::vector<Sample> samples(23);
  for (std::size_t i = 0; i < samples.size(); ++i) {
    samples[i].ids.assign(1 + i % 7, 0);
    samples[i].index = static_cast<std::int64_t>(i);
  }
  BatchStream whole(samples, 16, 5);
  std::vector<std::vector<const Sample*>> all;
  std::vector<std::pair<std::int64_t, std::int64_t>> cursors;
  for (int i = 0; i < 20; ++i) {
    cursors.emplace_back(whole.epoch(), whole.batch());
    all.push_back(whole.next());
  }
  for (std::size_t i = 0; i < cursors.size(); ++i) {
    BatchStream part(samples, 16, 5);
    part.seek(cursors[i].first, cursors[i].second);
    for (std::size_t j = i; j < all.size(); ++j) ASSERT_EQ(part.next(), all[j]);
  }
}

TEST(BatchStream, cursors_outside_are_refused) {
  std::vector<Sample> samples(4);
  for (Sample& sample : samples) sample.ids.assign(3, 0);
  BatchStream stream(samples, 6, 1);
  EXPECT_THROW(stream.seek(0, 3), ArgumentError);
  EXPECT_THROW(stream.seek(0, -1), ArgumentError);
  EXPECT_THROW(stream.seek(-1, 0), ArgumentError);
  stream.seek(0, 2);  // one past the last
  EXPECT_EQ(stream.next().size(), 2u);
  EXPECT_EQ(stream.epoch(), 1);
}

TEST(BatchStream, every_epoch_has_every_sample_once_in_another_order) {
  std::vector<Sample> samples(40);
  for (Sample& sample : samples) sample.ids.assign(3, 0);
  BatchStream stream(samples, 12, 1);
  const std::int64_t per_epoch = stream.count(1);
  std::vector<std::vector<const Sample*>> orders;
  for (int epoch = 0; epoch < 2; ++epoch) {
    std::vector<const Sample*> seen;
    for (std::int64_t i = 0; i < per_epoch; ++i) {
      for (const Sample* sample : stream.next()) seen.push_back(sample);
    }
    orders.push_back(seen);
    EXPECT_EQ(std::set<const Sample*>(seen.begin(), seen.end()).size(), samples.size());
    EXPECT_EQ(seen.size(), samples.size());
    EXPECT_EQ(stream.epochs_done(), epoch + 1);
  }
  EXPECT_NE(orders[0], orders[1]);
}
