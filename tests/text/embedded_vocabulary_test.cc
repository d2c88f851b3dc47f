// Vocabularies inside model files, and SentencePiece's files.
#include "text/embedded_vocabulary.h"

#include <cstring>
#include <filesystem>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "qkv/error.h"

#include "base/file.h"
#include "base/json.h"
#include "support/files.h"
#include "text/decoder.h"
#include "text/sentence_piece.h"

namespace {
using namespace qkv;
using qkv::testing::TempFolder;
using text::EmbeddedVocabulary;
using Ids = std::vector<std::int32_t>;
namespace fs = std::filesystem;

fs::path golden() { return fs::path(QKV_SOURCE_DIR) / "tests/golden/tokenizers"; }

constexpr const char* kTexts[] = {"",
                                  " ",
                                  "the card was charged",
                                  "I'll I'LL they've",
                                  "x=12345 foo_bar",
                                  "naïve 红色 😀",
                                  "a  b\n\nc",
                                  "  pays ",
                                  "\t\tend "};

EncodeOptions plain() {
  EncodeOptions options;
  options.add_special_tokens = false;
  options.parse_special = false;
  return options;
}

// The vocabulary of a golden tokenizer.json, as GGUF would hold it.
EmbeddedVocabulary gpt2_of(const std::string& name, const std::string& pre) {
  const Json json =
      Json::parse(read_file(golden() / (name + ".json")), name).at("tokenizer").at("model");
  EmbeddedVocabulary v;
  v.model = "gpt2";
  v.pre = pre;
  v.tokens.resize(json.at("vocab").size());
  for (const auto& [token, id] : json.at("vocab").as_object())
    v.tokens[static_cast<std::size_t>(id.as_int())] = token;
  for (const Json& merge : json.at("merges").as_array())
    v.merges.push_back(
        fmt::format("{} {}", merge.at(std::size_t{0}).as_string(), merge.at(1).as_string()));
  v.types.assign(v.tokens.size(), 1);
  v.types[0] = v.types[1] = 3;
  v.bos = 0;
  v.eos = 1;
  return v;
}

EmbeddedVocabulary llama_of(const std::string& name) {
  const text::SentencePieceModel model =
      text::parse_sentence_piece(read_file(golden() / (name + ".model")));
  EmbeddedVocabulary v;
  v.model = "llama";
  v.tokens = model.pieces.pieces;
  v.scores = model.pieces.scores;
  v.types = model.pieces.types;
  v.unknown = model.pieces.unknown;
  v.bos = 1;
  v.eos = 2;
  return v;
}

TEST(EmbeddedVocabulary, byte_level_ones_cut_words_as_their_kind_says) {
  for (const auto& [name, pre] :
       {std::pair{"gpt2", "gpt-2"}, std::pair{"gpt2", ""}, std::pair{"smollm", "smollm"},
        std::pair{"llama3", "llama-bpe"}}) {
    const Json whole = Json::parse(read_file(golden() / (std::string(name) + ".json")));
    const TempFolder folder;
    const Tokenizer file =
        Tokenizer::load(folder.write("tokenizer.json", whole.at("tokenizer").dump()));
    const Tokenizer embedded = text::make_tokenizer(gpt2_of(name, pre));
    embedded.save(folder / "saved");
    const Tokenizer saved = Tokenizer::load(folder / "saved");
    for (const char* text : kTexts) {
      EXPECT_EQ(embedded.encode(text, plain()).ids, file.encode(text, plain()).ids) << text;
      EXPECT_EQ(saved.encode(text).ids, embedded.encode(text).ids) << text;
      EXPECT_EQ(embedded.decode(embedded.encode(text).ids), text);
    }
  }
}

TEST(EmbeddedVocabulary, b44_qwen2_takes_digits_one_by_one) {
  const Tokenizer tokenizer = text::make_tokenizer(gpt2_of("llama3", "qwen2"));
  const Encoding e = tokenizer.encode("99.5", plain());
  EXPECT_EQ(e.tokens, (std::vector<std::string>{"9", "9", ".", "5"}));
}

TEST(EmbeddedVocabulary, b44_words_of_llama3) {
  // Every word is unknown: offsets show where words were cut.
  Json json = Json::parse(read_file(golden() / "llama3.json")).at("tokenizer");
  json["model"] = Json::Object{
      {"type", "WordLevel"}, {"vocab", Json::Object{{"<unk>", 0}}}, {"unk_token", "<unk>"}};
  json["added_tokens"] = Json::array();
  json["post_processor"] = nullptr;
  const TempFolder folder;
  const Tokenizer tokenizer = Tokenizer::load(folder.write("tokenizer.json", json.dump()));
  const auto words = [&](const std::string& text) {
    std::vector<std::string> cut;
    for (const auto& [begin, end] : tokenizer.encode(text).offsets)
      cut.push_back(
          text.substr(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin)));
    return cut;
  };
  using Words = std::vector<std::string>;
  EXPECT_EQ(words("a\n\nb"), (Words{"a", "\n\n", "b"}));
  EXPECT_EQ(words("I'LL"), (Words{"I", "'LL"}));
  EXPECT_EQ(words("x=12345"), (Words{"x", "=", "123", "45"}));
  EXPECT_EQ(words("a  b  "), (Words{"a", " ", " b", "  "}));
}

TEST(EmbeddedVocabulary, special_tokens_go_where_the_file_says) {
  EmbeddedVocabulary v = gpt2_of("gpt2", "gpt-2");
  v.add_bos = v.add_eos = true;
  const Tokenizer tokenizer = text::make_tokenizer(v);
  EXPECT_EQ(tokenizer.encode("").ids, (Ids{0, 1}));
  EXPECT_EQ(tokenizer.special_id("bos"), 0);
  EXPECT_EQ(tokenizer.special_id("eos"), 1);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("the card").ids), "the card");
  v.bos.reset();
  EXPECT_THROW(text::make_tokenizer(v), ModelError);
}

TEST(EmbeddedVocabulary, pieces_with_scores_give_the_ids_of_sentence_piece) {
  const Tokenizer file = Tokenizer::load(golden() / "bpe.model");
  const Tokenizer embedded = text::make_tokenizer(llama_of("bpe"));
  const TempFolder folder;
  embedded.save(folder.path());
  const Tokenizer saved = Tokenizer::load(folder.path());
  for (const char* text : kTexts) {
    EXPECT_EQ(embedded.encode(text, plain()).ids, file.encode(text, plain()).ids) << text;
    EXPECT_EQ(embedded.decode(embedded.encode(text).ids), text);
    // Metaspace, which the saved form has, puts no blank before another one.
    if (text[0] != ' ') {
      EXPECT_EQ(saved.encode(text, plain()).ids, file.encode(text, plain()).ids) << text;
    }
  }
}

TEST(EmbeddedVocabulary, berts_pieces_have_marks) {
  EmbeddedVocabulary v;
  v.model = "bert";
  v.tokens = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "\u2581stop", "ping", "\u2581,"};
  const Tokenizer tokenizer = text::make_tokenizer(v);
  EXPECT_EQ(tokenizer.encode("Stopping, stop").ids, (Ids{2, 4, 5, 6, 4, 3}));
  EXPECT_EQ(tokenizer.token(5), "##ping");
}

TEST(EmbeddedVocabulary, what_does_not_fit_is_an_error) {
  EmbeddedVocabulary v = gpt2_of("gpt2", "no-such");
  try {
    text::make_tokenizer(v);
    FAIL();
  } catch (const UnsupportedError& error) {
    EXPECT_NE(std::string(error.what()).find("llama-bpe"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("no-such"), std::string::npos);
  }
  v = gpt2_of("gpt2", "gpt-2");
  v.types.pop_back();
  EXPECT_THROW(text::make_tokenizer(v), ModelError);
  v = gpt2_of("gpt2", "gpt-2");
  v.eos = static_cast<std::int32_t>(v.tokens.size());
  EXPECT_THROW(text::make_tokenizer(v), ModelError);
  v = gpt2_of("gpt2", "gpt-2");
  v.merges.emplace_back("nospace");
  EXPECT_THROW(text::make_tokenizer(v), ModelError);
  v = gpt2_of("gpt2", "gpt-2");
  v.tokens[5] = "\xFF";
  EXPECT_THROW(text::make_tokenizer(v), ModelError);
  v = llama_of("bpe");
  v.scores.pop_back();
  EXPECT_THROW(text::make_tokenizer(v), ModelError);
  v.model = "t5";
  EXPECT_THROW(text::make_tokenizer(v), UnsupportedError);
  EXPECT_THROW(text::make_tokenizer({}), ModelError);
}

void append_number(std::string& bytes, const auto& value) {
  const std::size_t at = bytes.size();
  bytes.resize(at + sizeof(value));
  std::memcpy(bytes.data() + at, &value, sizeof(value));
}

std::string llama2c_file(const std::vector<std::pair<std::string, float>>& tokens) {
  std::string bytes;
  append_number(bytes, std::int32_t{8});
  for (const auto& [token, score] : tokens) {
    append_number(bytes, score);
    append_number(bytes, static_cast<std::int32_t>(token.size()));
    bytes += token;
  }
  return bytes;
}

TEST(EmbeddedVocabulary, reads_the_file_of_llama2c) {
  std::vector<std::pair<std::string, float>> tokens = {
      {"<unk>", 0}, {"\n<s>\n", 0}, {"\n</s>\n", 0}};
  for (int b = 0; b < 256; ++b)
    tokens.emplace_back(text::token_of_byte(static_cast<unsigned char>(b)), 0.0f);
  for (const auto& [token, score] :
       {std::pair{" a", -1.0f}, std::pair{"ab", -2.0f}, std::pair{" ", -3.0f},
        std::pair{"a", -4.0f}, std::pair{"b", -5.0f}})
    tokens.emplace_back(token, score);
  const TempFolder folder;
  const std::string bytes = llama2c_file(tokens);
  const fs::path path = folder.write("tok.bin", bytes);
  const Tokenizer tokenizer = text::make_tokenizer(text::read_llama2c_vocabulary(path));
  EXPECT_EQ(tokenizer.vocab_size(), 264);
  EXPECT_EQ(tokenizer.encode("ab").ids, (Ids{1, 259, 263}));  // a blank in front, its merge first
  EXPECT_EQ(tokenizer.encode("bé").ids, (Ids{1, 261, 263, 3 + 0xC3, 3 + 0xA9}));
  EXPECT_EQ(tokenizer.decode(Ids{1, 259, 263, 2}), "ab");
  EXPECT_EQ(text::read_llama2c_vocabulary(path, 260).tokens.size(), 260u);
  EXPECT_THROW(text::read_llama2c_vocabulary(path, 265), ModelError);
  for (const std::size_t size : {0, 3, 4, 7, 11, 14}) {
    EXPECT_THROW(text::read_llama2c_vocabulary(folder.write("cut.bin", bytes.substr(0, size))),
                 ModelError)
        << size;
  }
  std::string huge = bytes.substr(0, 8);
  append_number(huge, std::int32_t{0x7FFFFFFF});
  EXPECT_THROW(text::read_llama2c_vocabulary(folder.write("huge.bin", huge)), ModelError);
}

TEST(EmbeddedVocabulary, tells_the_published_story_model_apart) {
  QKV_SHARED_OR_SKIP(path, "data/models/stories260K/tok512.bin");
  const Tokenizer tokenizer = text::make_tokenizer(text::read_llama2c_vocabulary(path));
  EXPECT_EQ(tokenizer.vocab_size(), 512);
  const std::string story = "Once upon a time, there was a little girl named Lily.\n\"Hi!\" 😀";
  const Encoding e = tokenizer.encode(story);
  EXPECT_EQ(e.ids.at(0), 1);
  EXPECT_LT(e.ids.size(), story.size());
  EXPECT_EQ(tokenizer.decode(e.ids), story);
}

TEST(SentencePiece, b53_one_blank_before_the_text_and_none_behind_special_tokens) {
  const Tokenizer tokenizer = Tokenizer::load(golden() / "bpe.model");
  const std::string mark = "\u2581";
  EXPECT_TRUE(tokenizer.encode("the").tokens.at(0).starts_with(mark));
  const Encoding e = tokenizer.encode("<s>the</s>the");
  ASSERT_EQ(e.tokens.at(0), "<s>");
  EXPECT_FALSE(e.tokens.at(1).starts_with(mark));
  EXPECT_EQ(tokenizer.decode(e.ids), "thethe");
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("the card").ids), "the card");
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(" the").ids), " the");
  // encode(decode(ids)) is stable; one by one, each piece but the first keeps its blank.
  for (const char* text : {"the card", " the  card", "a"}) {
    const Ids ids = tokenizer.encode(text).ids;
    EXPECT_EQ(tokenizer.encode(tokenizer.decode(ids)).ids, ids);
  }
  // The flags are those of the file.
  const Tokenizer squeezed = Tokenizer::load(golden() / "unigram.model");
  EXPECT_EQ(squeezed.decode(squeezed.encode("  the   card ").ids), "the card");
  const Tokenizer no_prefix = Tokenizer::load(golden() / "bpe_own.model");
  EXPECT_FALSE(no_prefix.encode("the").tokens.at(0).starts_with(mark));
}

TEST(SentencePiece, special_tokens_come_from_the_configuration) {
  const TempFolder folder;
  folder.write("tokenizer.model", read_file(golden() / "bpe.model"));
  EXPECT_NE(Tokenizer::load(folder.path()).encode("the").ids.at(0), 1);
  folder.write("tokenizer_config.json", R"({"tokenizer_class":"LlamaTokenizer"})");
  EXPECT_EQ(Tokenizer::load(folder.path()).encode("").ids, Ids{1});
  folder.write("tokenizer_config.json", R"({"tokenizer_class":"T5TokenizerFast"})");
  EXPECT_EQ(Tokenizer::load(folder.path()).encode("").ids, Ids{2});
  folder.write(
      "tokenizer_config.json",
      R"({"tokenizer_class":"LlamaTokenizer","add_bos_token":false,"add_eos_token":true})");
  EXPECT_EQ(Tokenizer::load(folder.path()).encode("").ids, Ids{2});
  folder.write("tokenizer_config.json", R"({"tokenizer_class":"XLMRobertaTokenizer"})");
  const Tokenizer roberta = Tokenizer::load(folder.path());
  EXPECT_EQ(roberta.token(3), "<unk>");
  EXPECT_EQ(roberta.encode("").ids, (Ids{0, 2}));
  EXPECT_EQ(roberta.special_id("mask"), roberta.vocab_size() - 1);
  folder.write("tokenizer_config.json", R"({"tokenizer_class":"NllbTokenizer"})");
  EXPECT_THROW(Tokenizer::load(folder.path()), UnsupportedError);
}

TEST(SentencePiece, marian_numbers_pieces_in_a_file_of_its_own) {
  const TempFolder folder;
  folder.write("source.spm", read_file(golden() / "bpe.model"));
  const Tokenizer pieces = Tokenizer::load(golden() / "bpe.model");
  const Encoding e = pieces.encode("the card");
  Json vocabulary(Json::Object{{"</s>", 0}, {"<unk>", 1}});
  vocabulary[e.tokens[0]] = 2;
  folder.write("vocab.json", vocabulary.dump());
  const Tokenizer tokenizer = Tokenizer::load(folder.path());
  Ids expected(e.ids.size(), 1);
  expected[0] = 2;
  expected.push_back(0);
  EXPECT_EQ(tokenizer.encode("the card").ids, expected);
  tokenizer.save(folder / "saved");
  EXPECT_EQ(Tokenizer::load(folder / "saved").encode("the card").ids, expected);
  folder.write("vocab.json", R"({"a":0})");
  EXPECT_THROW(Tokenizer::load(folder.path()), ModelError);
}

TEST(SentencePiece, bad_files_are_model_errors) {
  const std::string good = read_file(golden() / "unigram.model");
  const auto refused = [](const std::string& bytes) {
    try {
      text::parse_sentence_piece(bytes);
    } catch (const ModelError&) {
      return true;
    }
    return false;
  };
  EXPECT_FALSE(refused(good));
  EXPECT_TRUE(refused(""));
  EXPECT_TRUE(refused("not a model at all"));
  EXPECT_TRUE(refused(good.substr(0, good.size() / 2 + 1)));
  EXPECT_TRUE(refused("\x0A\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x7F"));  // a length of 2^63
  EXPECT_TRUE(refused("\x0A\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01"));
  EXPECT_TRUE(refused(std::string("\x0A\x05\x0A\x01\xFF\x18\x01", 7)));  // a piece that is no UTF-8
  EXPECT_TRUE(refused(std::string("\x0A\x02\x18\x09", 4)));              // a type that is none
}

TEST(EmbeddedVocabulary, an_unknown_piece_without_a_name_is_decoded_too) {
  EmbeddedVocabulary v;
  v.model = "llama";
  v.tokens = {"", "<s>", "</s>", "\u2581", "a"};
  v.scores = {0, 0, 0, -1, -2};
  v.types = {2, 3, 3, 1, 1};
  v.unknown = 0;
  const Tokenizer tokenizer = text::make_tokenizer(v);
  const Encoding encoding = tokenizer.encode("a\u7ea2", plain());
  EXPECT_EQ(encoding.ids.back(), 0);
  EXPECT_EQ(tokenizer.decode(encoding.ids), "a");
}

}  // namespace
