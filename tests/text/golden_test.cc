// Tokenizers of every kind against what the reference libraries answer
// (tools/make_tokenizer_goldens.py).
#include <filesystem>

#include <gtest/gtest.h>

#include "qkv/tokenizer.h"

#include "base/file.h"
#include "base/json.h"
#include "support/files.h"
#include "text/normalizer.h"

namespace {
using namespace qkv;
using qkv::testing::TempFolder;
namespace fs = std::filesystem;

fs::path golden() { return fs::path(QKV_SOURCE_DIR) / "tests/golden/tokenizers"; }

Json read_golden(const std::string& name) { return Json::parse(read_file(golden() / name), name); }

Json ids_json(const std::vector<std::int32_t>& ids) {
  Json array = Json::array();
  for (const std::int32_t id : ids) array.push_back(id);
  return array;
}
Json offsets_json(const Encoding& encoding) {
  Json array = Json::array();
  for (const auto& [begin, end] : encoding.offsets) array.push_back(Json::Array{begin, end});
  return array;
}
void check_case(const Tokenizer& tokenizer, const Json& expected) {
  const std::string& text = expected.at("text").as_string();
  EncodeOptions options;
  options.add_special_tokens = expected.at("special").as_bool();
  const Json* pair = expected.find("pair");
  const Encoding e = pair == nullptr ? tokenizer.encode(text, options)
                                     : tokenizer.encode_pair(text, pair->as_string(), options);
  EXPECT_EQ(ids_json(e.ids).dump(), expected.at("ids").dump()) << text;
  EXPECT_EQ(offsets_json(e).dump(), expected.at("offsets").dump()) << text;
  EXPECT_EQ(ids_json(e.type_ids).dump(), expected.at("type_ids").dump()) << text;
  EXPECT_EQ(tokenizer.decode(e.ids), expected.at("decoded").as_string()) << text;
  EXPECT_EQ(e.attention_mask, std::vector<std::int32_t>(e.ids.size(), 1));
  options.with_pieces = false;
  const Encoding fast = pair == nullptr ? tokenizer.encode(text, options)
                                        : tokenizer.encode_pair(text, pair->as_string(), options);
  EXPECT_EQ(fast.ids, e.ids) << text;
  EXPECT_EQ(fast.type_ids, e.type_ids) << text;
}

class GoldenTokenizer : public ::testing::TestWithParam<const char*> {};

TEST_P(GoldenTokenizer, gives_the_ids_offsets_and_texts_of_the_reference) {
  const Json whole = read_golden(std::string(GetParam()) + ".json");
  const TempFolder folder;
  const Tokenizer tokenizer =
      Tokenizer::load(folder.write("tokenizer.json", whole.at("tokenizer").dump()));
  for (const Json& expected : whole.at("cases").as_array()) check_case(tokenizer, expected);
}
INSTANTIATE_TEST_SUITE_P(Kinds, GoldenTokenizer,
                         ::testing::Values("gpt2", "llama3", "smollm", "falcon", "roberta", "llama",
                                           "gemma", "metaspace_first", "suffix", "prefix", "added",
                                           "xlmr", "xlmr_bytes"),
                         [](const auto& kind) { return std::string(kind.param); });

class GoldenSentencePiece : public ::testing::TestWithParam<const char*> {};

TEST_P(GoldenSentencePiece, gives_the_ids_and_texts_of_the_reference) {
  const std::string name = GetParam();
  const Tokenizer tokenizer = Tokenizer::load(golden() / (name + ".model"));
  EncodeOptions options;
  options.parse_special = false;
  const Json whole = read_golden(name + ".model.json");
  for (const Json& expected : whole.at("cases").as_array()) {
    const std::string& text = expected.at("text").as_string();
    const Encoding e = tokenizer.encode(text, options);
    EXPECT_EQ(ids_json(e.ids).dump(), expected.at("ids").dump()) << text;
    if (const Json* decoded = expected.find("decoded")) {
      EXPECT_EQ(tokenizer.decode(e.ids), decoded->as_string()) << text;
    }
  }
  // Saved, the folder holds the same model.
  const TempFolder folder;
  tokenizer.save(folder.path());
  EXPECT_EQ(Tokenizer::load(folder.path()).encode("the card, 红色", options).ids,
            tokenizer.encode("the card, 红色", options).ids);
}
INSTANTIATE_TEST_SUITE_P(Kinds, GoldenSentencePiece,
                         ::testing::Values("unigram", "unigram_bytes", "bpe", "bpe_own",
                                           "bpe_suffix"),
                         [](const auto& kind) { return std::string(kind.param); });

TEST(GoldenWords, are_cut_as_by_the_reference) {
  const Json whole = read_golden("words.json");
  for (const auto& [name, kind] : whole.at("kinds").as_object()) {
    Json json = Json::parse(
        R"({"model":{"type":"WordLevel","vocab":{"<unk>":0,"the":1,"card":2},"unk_token":"<unk>"}})");
    json["pre_tokenizer"] = kind.at("pre_tokenizer");
    const TempFolder folder;
    const Tokenizer tokenizer = Tokenizer::load(folder.write("tokenizer.json", json.dump()));
    const Json::Array& texts = whole.at("texts").as_array();
    for (std::size_t i = 0; i < texts.size(); ++i) {
      EXPECT_EQ(offsets_json(tokenizer.encode(texts[i].as_string())).dump(),
                kind.at("offsets").at(i).dump())
          << name << ": " << texts[i].as_string();
    }
  }
}

TEST(GoldenNormalized, texts_and_offsets_are_those_of_the_reference) {
  const Json whole = read_golden("normalized.json");
  for (const auto& [name, kind] : whole.at("kinds").as_object()) {
    const auto normalizer = text::make_normalizer(kind.at("normalizer"));
    Json json = Json::parse(
        R"({"model":{"type":"BPE","vocab":{"<unk>":0},"merges":[],"unk_token":"<unk>"}})");
    json["normalizer"] = kind.at("normalizer");
    const TempFolder folder;
    const Tokenizer tokenizer = Tokenizer::load(folder.write("tokenizer.json", json.dump()));
    const Json::Array& texts = whole.at("texts").as_array();
    for (std::size_t i = 0; i < texts.size(); ++i) {
      const std::string& text = texts[i].as_string();
      EXPECT_EQ(normalizer->apply(text::AlignedText(text, 0, false)).text(),
                kind.at("texts").at(i).as_string())
          << name;
      EXPECT_EQ(offsets_json(tokenizer.encode(text)).dump(), kind.at("offsets").at(i).dump())
          << name << ": " << text;
    }
  }
}

}  // namespace
