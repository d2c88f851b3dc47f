#include <chrono>
#include <set>

#include <gtest/gtest.h>

#include "qkv/tokenizer.h"

#include "base/file.h"
#include "base/json.h"
#include "base/random.h"
#include "support/files.h"
#include "text/dataset.h"
#include "text/token_model.h"

namespace {
using namespace qkv;
using qkv::testing::TempFolder;

constexpr TokenizerKind kKinds[] = {TokenizerKind::kChar, TokenizerKind::kBpe,
                                    TokenizerKind::kWordPiece};

const std::vector<std::string>& corpus() {
  static const std::vector<std::string> texts = {"the quick brown fox jumps over the lazy dog",
                                                 "the dog sleeps; the fox does not!",
                                                 "I'll go, we're here  twice",
                                                 "我昨天买的那个红色的充电宝什么时候到",
                                                 "红色的充电宝和蓝色的充电宝",
                                                 "naïve café, naïve café",
                                                 "emoji 😀😀 and 👍🏽 👍🏽",
                                                 "low lower lowest low lower low",
                                                 "new newer newest new newer new"};
  return texts;
}

Tokenizer train(TokenizerKind kind, std::int64_t size = 400) {
  TokenizerOptions options;
  options.kind = kind;
  options.vocab_size = size;
  return Tokenizer::train(corpus(), options);
}

TEST(TokenizerTrain, specials_have_the_first_ids) {
  for (const TokenizerKind kind : kKinds) {
    const Tokenizer tokenizer = train(kind);
    std::int32_t id = 0;
    for (const char* role : {"pad", "unk", "cls", "sep", "mask"})
      EXPECT_EQ(tokenizer.special_id(role), id++);
    EXPECT_EQ(tokenizer.token(4), "[MASK]");
    EXPECT_EQ(tokenizer.special_id("bos"), std::nullopt);
    EXPECT_LE(tokenizer.vocab_size(), 400);
  }
}

TEST(TokenizerTrain, is_deterministic_and_independent_of_the_order) {
  for (const TokenizerKind kind : kKinds) {
    const TempFolder folder;
    train(kind).save(folder / "a");
    train(kind).save(folder / "b");
    EXPECT_EQ(read_file(folder / "a/tokenizer.json"), read_file(folder / "b/tokenizer.json"));
    TokenizerOptions options;
    options.kind = kind;
    options.vocab_size = 400;
    std::vector<std::string> turned(corpus().rbegin(), corpus().rend());
    Tokenizer::train(turned, options).save(folder / "c");
    EXPECT_EQ(read_file(folder / "a/tokenizer.json"), read_file(folder / "c/tokenizer.json"));
  }
}

TEST(TokenizerTrain, byte_level_knows_every_text) {
  const Tokenizer tokenizer = train(TokenizerKind::kBpe);
  for (const std::string& text :
       {std::string("völlig Neues: ✓ 漢字"), std::string("a\0b", 3), std::string("\t\n \r\n")}) {
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text).ids), text);
  }
  EXPECT_EQ(tokenizer.vocab_size() > 261, true);
}

TEST(TokenizerTrain, character_pieces_are_single_characters) {
  const Tokenizer tokenizer = train(TokenizerKind::kChar);
  const Encoding e = tokenizer.encode("红色的宝ж");
  EXPECT_EQ(e.tokens,
            (std::vector<std::string>{"[CLS]", "红", "色", "的", "宝", "[UNK]", "[SEP]"}));
  EXPECT_EQ(tokenizer.token_id("昨"), std::nullopt);  // seen once: min_frequency is 2
}

TEST(TokenizerTrain, word_pieces_join_what_is_frequent) {
  const Tokenizer tokenizer = train(TokenizerKind::kWordPiece);
  const Encoding e = tokenizer.encode("low newest lowx");
  EXPECT_EQ(e.tokens.at(1), "low");
  EXPECT_EQ(tokenizer.decode(e.ids), "low newest lowx");
}

TEST(TokenizerTrain, options_are_kept) {
  TokenizerOptions options;
  options.vocab_size = 270;
  options.cls_sep = false;
  options.lowercase = true;
  for (const TokenizerKind kind : kKinds) {
    options.kind = kind;
    const Tokenizer tokenizer = Tokenizer::train(corpus(), options);
    EXPECT_LE(tokenizer.vocab_size(), 270);
    EXPECT_EQ(tokenizer.encode("LOW").ids, tokenizer.encode("low").ids);
    EXPECT_TRUE(tokenizer.encode("").ids.empty());
  }
  options.vocab_size = 100;
  options.kind = TokenizerKind::kBpe;
  EXPECT_THROW(Tokenizer::train(corpus(), options), ArgumentError);
  options.kind = TokenizerKind::kChar;
  EXPECT_EQ(Tokenizer::train(corpus(), options).vocab_size() <= 100, true);
  const std::vector<std::string> bad = {"ok", "\xFF"};
  EXPECT_THROW(Tokenizer::train(bad, options), DataError);
  options.min_frequency = 0;
  EXPECT_THROW(Tokenizer::train(corpus(), options), ArgumentError);
}

TEST(TokenizerTrain, special_tokens_in_the_texts_are_not_learned_from) {
  TokenizerOptions options;
  options.vocab_size = 400;
  const std::vector<std::string> texts(50, "[MASK][MASK]");
  EXPECT_EQ(Tokenizer::train(texts, options).vocab_size(), 261);
}

// Independent check of the pair counting: the same merges as recounting everything before each
// merge.
TEST(TokenizerTrain, merges_equal_a_plain_recount) {
  Random random(5);
  for (int round = 0; round < 20; ++round) {
    std::vector<std::string> texts;
    for (int t = 0; t < 30; ++t) {
      std::string text;
      for (int i = 0; i < 12; ++i) text += static_cast<char>('a' + random.below(3));
      texts.push_back(text);
    }
    TokenizerOptions options;
    options.vocab_size = 261 + 40;
    const TempFolder folder;
    Tokenizer::train(texts, options).save(folder.path());
    const Json json = Json::parse(read_file(folder / "tokenizer.json"));
    std::vector<std::string> merges;
    for (const Json& merge : json.at("model").at("merges").as_array())
      merges.push_back(merge.as_string());

    std::vector<std::vector<std::string>> words;
    for (const std::string& text : texts) {
      auto& word = words.emplace_back();
      for (const char c : text) word.emplace_back(1, c);
    }
    std::set<std::string> pieces;
    std::vector<std::string> expected;
    while (pieces.size() < 40) {
      std::map<std::pair<std::string, std::string>, int> counts;
      for (const auto& word : words) {
        for (std::size_t i = 0; i + 1 < word.size(); ++i) ++counts[{word[i], word[i + 1]}];
      }
      std::pair<int, std::pair<std::string, std::string>> best{1, {}};
      for (const auto& [pair, count] : counts) best = std::max(best, {count, pair});
      if (best.first < 2) break;
      const auto& [left, right] = best.second;
      expected.push_back(left + " " + right);
      pieces.insert(left + right);
      for (auto& word : words) {
        for (std::size_t i = 0; i + 1 < word.size(); ++i) {
          if (word[i] != left || word[i + 1] != right) continue;
          word[i] += word[i + 1];
          word.erase(word.begin() + static_cast<std::ptrdiff_t>(i) + 1);
        }
      }
    }
    ASSERT_EQ(merges, expected);
  }
}

TEST(TokenizerTrain, equals_the_byte_level_reference) {
  QKV_SHARED_OR_SKIP(folder, "data/tokenizers/bpe-training-reference");
  TokenizerOptions options;
  options.vocab_size = 5 + 256 + 243;  // the reference has 500 entries, one of them special
  options.cls_sep = false;
  const std::vector<std::string> texts = {read_file(folder / "corpus.en")};
  const Tokenizer tokenizer = Tokenizer::train(texts, options);
  const TempFolder saved;
  tokenizer.save(saved.path());
  const Json json = Json::parse(read_file(saved / "tokenizer.json"));
  std::string merges;
  for (const Json& merge : json.at("model").at("merges").as_array())
    merges += merge.as_string() + "\n";
  EXPECT_EQ(merges, read_file(folder / "train-bpe-reference-merges.txt"));
  std::set<std::string> expected, got;
  const Json reference = Json::parse(read_file(folder / "train-bpe-reference-vocab.json"));
  for (const auto& [token, id] : reference.as_object()) {
    if (token != "<|endoftext|>") expected.insert(token);
  }
  for (std::int32_t id = 5; id < tokenizer.vocab_size(); ++id) got.insert(tokenizer.token(id));
  EXPECT_EQ(got, expected);
}

TEST(TokenizerTrain, three_thousand_pieces_of_ten_thousand_lines_take_seconds) {
  QKV_SHARED_OR_SKIP(path, "data/banking77/train.csv");
  TableOptions table;
  table.label = "category";
  std::vector<std::string> texts;
  for (const TextRow& row : read_table(path, table)) texts.push_back(row.text);
  for (const TokenizerKind kind : kKinds) {
    const auto begin = std::chrono::steady_clock::now();
    TokenizerOptions options;
    options.kind = kind;
    const Tokenizer tokenizer = Tokenizer::train(texts, options);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    RecordProperty("seconds", std::to_string(seconds.count()));
    EXPECT_LT(seconds.count(),
              20);  // about a third of a second; wide for sanitizers and busy machines
    if (kind != TokenizerKind::kChar) {
      EXPECT_EQ(tokenizer.vocab_size(), 3000);
    }
    for (std::size_t i = 0; i < texts.size(); i += 97) {
      if (kind == TokenizerKind::kBpe) {
        ASSERT_EQ(tokenizer.decode(tokenizer.encode(texts[i]).ids), texts[i]);
      }
    }
  }
}

}  // namespace
