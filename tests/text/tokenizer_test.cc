#include "qkv/tokenizer.h"

#include <ctime>
#include <numeric>
#include <set>

#include <gtest/gtest.h>

#include "qkv/error.h"

#include "base/file.h"
#include "base/json.h"
#include "support/files.h"
#include "text/normalizer.h"
#include "text/pipeline.h"
#include "text/pre_tokenizer.h"
#include "text/token_model.h"

namespace {
using namespace qkv;
using qkv::testing::TempFolder;
using Ids = std::vector<std::int32_t>;
using Words = std::vector<std::string>;
using Offsets = std::vector<std::pair<std::int64_t, std::int64_t>>;

Tokenizer tokenizer_of(const Json& json) {
  const TempFolder folder;
  return Tokenizer::load(folder.write("tokenizer.json", json.dump()));
}

Json added(int id, const std::string& content) {
  return Json(Json::Object{{"id", id},
                           {"content", content},
                           {"single_word", false},
                           {"lstrip", false},
                           {"rstrip", false},
                           {"normalized", false},
                           {"special", true}});
}

// Letters a to z have ids 100 to 125, the space (as Ġ) 99; nothing is joined.
Json letters_json() {
  Json vocabulary(Json::Object{{"Ġ", 99}});
  for (int c = 0; c < 26; ++c) vocabulary[std::string(1, static_cast<char>('a' + c))] = 100 + c;
  for (const char* c : {"<", ">", "|"}) vocabulary[c] = 126 + static_cast<int>(vocabulary.size());
  Json json = Json::parse(
      R"({"added_tokens":[],"normalizer":null,"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false},
          "post_processor":null,"decoder":{"type":"ByteLevel"},"model":{"type":"BPE","merges":[]}})");
  json["model"]["vocab"] = std::move(vocabulary);
  return json;
}

Json word_piece_json(const Words& vocabulary, bool lowercase, bool strip_accents) {
  Json json = Json::parse(
      R"({"added_tokens":[],"pre_tokenizer":{"type":"BertPreTokenizer"},"post_processor":null,
          "decoder":{"type":"WordPiece","prefix":"##","cleanup":true},
          "model":{"type":"WordPiece","unk_token":"[UNK]","continuing_subword_prefix":"##","max_input_chars_per_word":100}})");
  json["normalizer"] = text::bert_normalizer_json({true, true, strip_accents, lowercase});
  json["model"]["vocab"] = Json::object();
  for (const std::string& token : vocabulary)
    json["model"]["vocab"][token] = static_cast<std::int64_t>(json["model"]["vocab"].size());
  return json;
}

Words split_with(void (*split)(std::string_view, std::vector<text::Span>&),
                 const std::string& text) {
  std::vector<text::Span> spans;
  split(text, spans);
  Words words;
  for (const text::Span& span : spans)
    words.push_back(text.substr(span.begin, span.end - span.begin));
  return words;
}
Words gpt2(const std::string& text) { return split_with(text::split_gpt2, text); }

TEST(Tokenizer, b44_words_of_gpt2) {
  EXPECT_EQ(gpt2("a  b"), (Words{"a", " ", " b"}));
  EXPECT_EQ(gpt2("a   b"), (Words{"a", "  ", " b"}));
  EXPECT_EQ(gpt2("a\n\nb"), (Words{"a", "\n", "\n", "b"}));
  EXPECT_EQ(gpt2("a \n b"), (Words{"a", " \n", " b"}));
  EXPECT_EQ(gpt2("a  "), (Words{"a", "  "}));
  EXPECT_EQ(gpt2("  a"), (Words{" ", " a"}));
  EXPECT_EQ(gpt2("a\t\tb"), (Words{"a", "\t", "\t", "b"}));
  EXPECT_EQ(gpt2("a\u00A0b"), (Words{"a", "\u00A0", "b"}));
  EXPECT_EQ(gpt2("I'll I'LL"), (Words{"I", "'ll", " I", "'", "LL"}));
  EXPECT_EQ(gpt2("x=12345"), (Words{"x", "=", "12345"}));
  EXPECT_EQ(gpt2("foo_bar"), (Words{"foo", "_", "bar"}));
  EXPECT_EQ(gpt2(""), Words{});
  EXPECT_EQ(gpt2(" "), Words{" "});
  EXPECT_EQ(gpt2("'s"), Words{"'s"});
  EXPECT_EQ(gpt2(" 's !'s'"), (Words{" '", "s", " !'", "s", "'"}));
  EXPECT_EQ(gpt2("你好，世界 ½²"), (Words{"你好", "，", "世界", " ½²"}));
}

TEST(Tokenizer, b46_merges_in_every_form) {
  Json json = letters_json();
  json["model"]["vocab"]["ab"] = 300;
  json["model"]["vocab"]["a "] = 301;
  json["model"]["vocab"]["a b"] = 302;
  for (const char* merges : {R"([["a","b"]])", R"(["a b"])"}) {
    json["model"]["merges"] = Json::parse(merges);
    EXPECT_EQ(tokenizer_of(json).encode("abc").ids, (Ids{300, 102}));
  }
  // A piece with a space in it can only be written as a pair; here words are characters, not bytes.
  json["pre_tokenizer"] = nullptr;
  json["model"]["vocab"][" "] = 303;
  json["model"]["merges"] = Json::parse(R"([["a"," "],["a ","b"]])");
  EXPECT_EQ(tokenizer_of(json).encode("a bc").ids, (Ids{302, 102}));
  for (const char* merges :
       {R"(["ab"])", R"(["a b c"])", R"([["a"]])", R"([["a","b","c"]])", R"(["x q"])", R"([1])"}) {
    json["model"]["merges"] = Json::parse(merges);
    EXPECT_THROW(tokenizer_of(json), ModelError) << merges;
  }
}

TEST(Tokenizer, b46_the_text_file_of_merges) {
  EXPECT_EQ(text::parse_merges_text("#version: 0.2\r\n# #\r\n## #").dump(), R"(["# #","## #"])");
  EXPECT_EQ(text::parse_merges_text("# #\n#version x\n").dump(), R"(["# #","#version x"])");
  EXPECT_EQ(text::parse_merges_text("").dump(), "[]");
  const TempFolder folder;
  folder.write("vocab.json", R"({"#":0,"##":1,"###":2,"a":3})");
  folder.write("merges.txt", "#version: 0.2\r\n# #\r\n## #");
  const Tokenizer tokenizer = Tokenizer::load(folder.path());
  EXPECT_EQ(tokenizer.encode("##a###").ids, (Ids{1, 3, 2}));
}

TEST(Tokenizer, b46_visible_bytes) {
  std::set<char32_t> seen;
  for (int b = 0; b < 256; ++b) seen.insert(text::visible_byte(static_cast<unsigned char>(b)));
  EXPECT_EQ(seen.size(), 256u);
  EXPECT_EQ(text::visible_byte(0x20), 0x120u);
  EXPECT_EQ(text::visible_byte(0x0A), 0x10Au);
  EXPECT_EQ(text::visible_byte(0xAD), 0x143u);
  std::string all(256, '\0'), back;
  std::iota(all.begin(), all.end(), '\0');
  ASSERT_TRUE(text::from_visible(text::to_visible(all), back));
  EXPECT_EQ(back, all);
  EXPECT_FALSE(text::from_visible("a b", back));
}

TEST(Tokenizer, b47_special_tokens_in_the_text) {
  Json json = letters_json();
  json["model"]["vocab"]["x "] = 400;
  Json tokens = Json::array();
  tokens.push_back(added(9, "<|endoftext|>"));
  tokens.push_back(added(8, "<|end|>"));
  Json mask = added(7, "<mask>");
  mask["lstrip"] = true;
  tokens.push_back(mask);
  json["added_tokens"] = tokens;
  const Tokenizer tokenizer = tokenizer_of(json);
  EXPECT_EQ(tokenizer.encode("x<|endoftext|>y").ids, (Ids{123, 9, 124}));
  EXPECT_EQ(tokenizer.encode("<|end|>of").ids, (Ids{8, 114, 105}));
  EXPECT_EQ(tokenizer.encode("a <mask> b").ids, (Ids{100, 7, 99, 101}));
  EXPECT_EQ(tokenizer.encode("a <mask> b").offsets, (Offsets{{0, 1}, {1, 8}, {8, 9}, {9, 10}}));
  EXPECT_EQ(tokenizer.encode("a   <mask>").ids, (Ids{100, 7}));
  EXPECT_EQ(tokenizer.encode("<|endoftext").ids.size(), 11u);
  EncodeOptions plain;
  plain.parse_special = false;
  const Encoding e = tokenizer.encode("x<|endoftext|>y", plain);
  EXPECT_EQ(e.ids.size(), 15u);
  EXPECT_EQ(std::count(e.ids.begin(), e.ids.end(), 9), 0);
  EXPECT_EQ(tokenizer.decode(e.ids), "x<|endoftext|>y");
  EXPECT_EQ(tokenizer.decode(Ids{123, 9, 124}), "xy");
  EXPECT_EQ(tokenizer.decode(Ids{123, 9, 124}, false), "x<|endoftext|>y");
}

std::string normalized(const std::string& text, bool lowercase, bool strip_accents) {
  const auto normalizer =
      text::make_normalizer(text::bert_normalizer_json({true, true, strip_accents, lowercase}));
  return std::string(normalizer->apply(text::AlignedText(text, 0, false)).text());
}
Words bert_words(const std::string& text, bool lowercase = true) {
  return split_with(text::split_bert, normalized(text, lowercase, lowercase));
}

TEST(Tokenizer, b48_the_normaliser_of_bert) {
  EXPECT_EQ(bert_words("naïve", false), Words{"naïve"});
  EXPECT_EQ(bert_words("naïve", true), Words{"naive"});
  EXPECT_EQ(bert_words("a\u00ADb"), Words{"ab"});
  EXPECT_EQ(bert_words("a\u200Bb"), Words{"ab"});
  EXPECT_EQ(bert_words(std::string("a\0b\uFFFDc", 7)), Words{"abc"});
  EXPECT_EQ(bert_words("a\u3000b"), (Words{"a", "b"}));
  EXPECT_EQ(bert_words("a\u0085b"), Words{"ab"});
  EXPECT_EQ(bert_words("東京タワー"), (Words{"東", "京", "タワー"}));
  EXPECT_EQ(bert_words("㐀x"), (Words{"㐀", "x"}));
  EXPECT_EQ(bert_words("a$b^c"), (Words{"a", "$", "b", "^", "c"}));
  EXPECT_EQ(bert_words("İ"), Words{"i"});
  EXPECT_EQ(bert_words("ÀÉ ẞ"), (Words{"ae", "ß"}));
  // Unset, the accents follow the case.
  for (const bool lower : {true, false}) {
    Json json = text::bert_normalizer_json({true, true, true, lower});
    json["strip_accents"] = nullptr;
    const auto normalizer = text::make_normalizer(json);
    EXPECT_EQ(normalizer->apply(text::AlignedText("Ïa", 0, false)).text(), lower ? "ia" : "Ïa");
  }
}

TEST(Tokenizer, b48_offsets_point_into_the_original) {
  const Tokenizer tokenizer =
      tokenizer_of(word_piece_json({"[UNK]", "naive", "東", "ii", "x"}, true, true));
  const Encoding e = tokenizer.encode("\u200BNAÏVE\u00AD 東x İI");
  EXPECT_EQ(e.tokens, (Words{"naive", "東", "x", "ii"}));
  EXPECT_EQ(e.offsets, (Offsets{{1, 6}, {8, 9}, {9, 10}, {11, 13}}));
}

TEST(Tokenizer, b49_unknown_words_and_long_words) {
  const Tokenizer tokenizer = tokenizer_of(word_piece_json(
      {"[UNK]", "un", "##want", "##ed", "runn", "##ing", "a", "##a", "é", "##é"}, false, false));
  EXPECT_EQ(tokenizer.encode("unwantedX running").tokens, (Words{"[UNK]", "runn", "##ing"}));
  EXPECT_EQ(tokenizer.encode("unwanted running").tokens,
            (Words{"un", "##want", "##ed", "runn", "##ing"}));
  EXPECT_EQ(tokenizer.encode("x").tokens, Words{"[UNK]"});
  const Encoding hundred = tokenizer.encode(std::string(100, 'a'));
  ASSERT_EQ(hundred.tokens.size(), 100u);
  EXPECT_EQ(hundred.tokens[0], "a");
  EXPECT_EQ(hundred.tokens[99], "##a");
  EXPECT_EQ(hundred.offsets[99], (std::pair<std::int64_t, std::int64_t>{99, 100}));
  const Encoding longer = tokenizer.encode(std::string(101, 'a'));
  EXPECT_EQ(longer.tokens, Words{"[UNK]"});
  EXPECT_EQ(longer.offsets, (Offsets{{0, 101}}));
  std::string accents;
  for (int i = 0; i < 60; ++i) accents += "é";
  const Encoding sixty = tokenizer.encode(accents);
  ASSERT_EQ(sixty.tokens.size(), 60u);
  EXPECT_EQ(sixty.tokens[0], "é");
  EXPECT_EQ(sixty.tokens[59], "##é");
}

TEST(Tokenizer, b54_bad_bytes_are_refused_with_their_position) {
  const Tokenizer tokenizer = tokenizer_of(letters_json());
  const auto position = [&](const std::string& text) {
    try {
      tokenizer.encode(text);
    } catch (const DataError& error) {
      const std::string message = error.what();
      return std::stoi(message.substr(message.rfind(' ')));
    }
    return -1;
  };
  EXPECT_EQ(position("\xC0\x80"), 0);
  EXPECT_EQ(position("ab\xED\xA0\x80"), 2);
  EXPECT_EQ(position("\xF4\x90\x80\x80"), 0);
  EXPECT_EQ(position("a\xE2\x82"), 1);
  EXPECT_EQ(position(""), -1);
  EXPECT_TRUE(tokenizer.encode("").ids.empty());
}

TEST(Tokenizer, b54_nul_is_kept_by_byte_level) {
  TokenizerOptions options;
  options.vocab_size = 261;
  const Tokenizer tokenizer = Tokenizer::train(std::vector<std::string>{"a"}, options);
  const std::string text("a\0b", 3);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(text).ids), text);
}

TEST(Tokenizer, b54_bad_ids_are_errors_that_name_them) {
  const Tokenizer tokenizer = tokenizer_of(letters_json());
  const auto size = static_cast<std::int32_t>(tokenizer.vocab_size());
  for (const std::int32_t id : {-100, -1, size, 2147483647, 5 /* a hole */}) {
    try {
      tokenizer.decode(Ids{100, id});
      FAIL() << id;
    } catch (const ArgumentError& error) {
      EXPECT_NE(std::string(error.what()).find("got " + std::to_string(id)), std::string::npos)
          << error.what();
    }
  }
  EXPECT_EQ(tokenizer.decode(Ids{}), "");
}

TEST(Tokenizer, b54_a_megabyte_takes_linear_time) {
  Json json = letters_json();
  Json merges = Json::array();
  std::string piece = "a";
  for (int i = 0; i < 10; ++i) {  // a, aa, aaaa, ...
    merges.push_back(piece + " " + piece);
    piece += piece;
    json["model"]["vocab"][piece] = 500 + i;
  }
  json["model"]["merges"] = merges;
  const Tokenizer tokenizer = tokenizer_of(json);
  const std::clock_t begin = std::clock();  // of the processor: the machine may be busy
  EXPECT_EQ(tokenizer.encode(std::string(1 << 20, 'a')).ids, Ids(1024, 509));
  const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  EXPECT_LT(seconds, 20);  // a quadratic way takes hours
}

// The heap of long words and the array of short ones are two ways to the same pieces.
TEST(Tokenizer, long_and_short_words_are_cut_alike) {
  Json json = letters_json();
  Json merges = Json::array();
  int id = 500;
  for (const auto& [left, right] : std::vector<std::pair<std::string, std::string>>{{"a", "b"},
                                                                                    {"b", "a"},
                                                                                    {"ab", "a"},
                                                                                    {"a", "a"},
                                                                                    {"b", "b"},
                                                                                    {"ba", "b"},
                                                                                    {"aa", "ab"},
                                                                                    {"bb", "ba"}}) {
    merges.push_back(left + " " + right);
    json["model"]["vocab"][left + right] = id++;
  }
  json["model"]["merges"] = merges;
  const Tokenizer tokenizer = tokenizer_of(json);
  std::uint32_t state = 1;
  for (int round = 0; round < 300; ++round) {
    std::string word;
    const std::size_t length = 40 + state % 24;
    while (word.size() < length) {
      state = state * 1664525u + 1013904223u;
      word += state >> 31 ? 'a' : 'b';
    }
    // A letter that joins with nothing splits the work: behind 70 of them the word is long, its
    // pieces the same.
    const Ids alone = tokenizer.encode(word).ids;
    Ids padded = tokenizer.encode(word + std::string(70, 'z')).ids;
    ASSERT_GE(padded.size(), 70u);
    padded.resize(padded.size() - 70);
    ASSERT_EQ(alone, padded) << word;
  }
}

TEST(Tokenizer, pieces_of_a_character_have_its_offsets) {
  TokenizerOptions options;
  options.vocab_size = 261;
  options.cls_sep = false;
  const Tokenizer tokenizer = Tokenizer::train(std::vector<std::string>{"a"}, options);
  const Encoding e = tokenizer.encode("aé😀b");
  EXPECT_EQ(e.offsets, (Offsets{{0, 1}, {1, 2}, {1, 2}, {2, 3}, {2, 3}, {2, 3}, {2, 3}, {3, 4}}));
  EXPECT_EQ(e.tokens.size(), e.ids.size());
  EncodeOptions ids_only;
  ids_only.with_pieces = false;
  const Encoding fast = tokenizer.encode("aé😀b", ids_only);
  EXPECT_EQ(fast.ids, e.ids);
  EXPECT_TRUE(fast.tokens.empty());
  EXPECT_TRUE(fast.offsets.empty());
}

TEST(Tokenizer, decoding_replaces_broken_characters) {
  TokenizerOptions options;
  options.vocab_size = 261;
  options.cls_sep = false;
  const Tokenizer tokenizer = Tokenizer::train(std::vector<std::string>{"a"}, options);
  Ids ids = tokenizer.encode("😀é").ids;
  EXPECT_EQ(tokenizer.decode(ids), "😀é");
  EXPECT_EQ(tokenizer.decode(Ids(ids.begin(), ids.begin() + 3)),
            "\uFFFD");  // one for a cut character
  EXPECT_EQ(tokenizer.decode(Ids(ids.begin() + 1, ids.begin() + 4)),
            "\uFFFD\uFFFD\uFFFD");  // one for each stray byte
}

TEST(Tokenizer, saves_and_loads_the_same) {
  const TempFolder folder;
  const std::vector<std::string> texts = {"hello hello world world", "你好 你好 世界"};
  for (const TokenizerKind kind :
       {TokenizerKind::kChar, TokenizerKind::kBpe, TokenizerKind::kWordPiece}) {
    TokenizerOptions options;
    options.kind = kind;
    options.vocab_size = 300;
    const Tokenizer tokenizer = Tokenizer::train(texts, options);
    tokenizer.save(folder / "a");
    const Tokenizer back = Tokenizer::load(folder / "a");
    EXPECT_EQ(back.vocab_size(), tokenizer.vocab_size());
    EXPECT_EQ(back.encode("hello 世界! [MASK]").ids, tokenizer.encode("hello 世界! [MASK]").ids);
    EXPECT_EQ(back.special_id("mask"), 4);
    back.save(folder / "b");
    EXPECT_EQ(read_file(folder / "a/tokenizer.json"), read_file(folder / "b/tokenizer.json"));
    EXPECT_EQ(read_file(folder / "a/tokenizer_config.json"),
              read_file(folder / "b/tokenizer_config.json"));
  }
}

TEST(Tokenizer, truncation_and_padding_of_the_file_are_not_applied) {
  Json json = letters_json();
  json["truncation"] = Json::parse(R"({"max_length":2,"strategy":"LongestFirst","stride":0})");
  json["padding"] =
      Json::parse(R"({"strategy":{"Fixed":64},"pad_id":0,"pad_type_id":0,"pad_token":"[PAD]"})");
  EXPECT_EQ(tokenizer_of(json).encode("abc").ids.size(), 3u);
}

TEST(Tokenizer, roles_come_from_the_configuration) {
  const TempFolder folder;
  Json json = letters_json();
  json["model"]["vocab"]["<s>"] = 0;
  json["model"]["vocab"]["</s>"] = 1;
  folder.write("tokenizer.json", json.dump());
  EXPECT_EQ(Tokenizer::load(folder.path()).special_id("sep"), 1);
  folder.write("tokenizer_config.json",
               R"({"bos_token":{"content":"<s>"},"sep_token":"a","eos_token":null})");
  folder.write("special_tokens_map.json", R"({"pad_token":"b","sep_token":"c"})");
  const Tokenizer tokenizer = Tokenizer::load(folder.path());
  EXPECT_EQ(tokenizer.special_id("bos"), 0);
  EXPECT_EQ(tokenizer.special_id("sep"), 100);
  EXPECT_EQ(tokenizer.special_id("pad"), 101);
  EXPECT_EQ(tokenizer.special_id("eos"), std::nullopt);
}

TEST(Tokenizer, bad_files_are_model_errors_with_the_path) {
  const TempFolder folder;
  EXPECT_THROW(Tokenizer::load(folder.path()), ModelError);
  EXPECT_THROW(Tokenizer::load(folder / "absent"), IoError);
  const auto refused = [&](const std::string& bytes) {
    try {
      Tokenizer::load(folder.write("tokenizer.json", bytes));
    } catch (const ModelError& error) {
      return std::string(error.what()).find(folder.path().string()) != std::string::npos;
    }
    return false;
  };
  EXPECT_TRUE(refused(""));
  EXPECT_TRUE(refused("[]"));
  EXPECT_TRUE(refused("{}"));
  EXPECT_TRUE(refused(R"({"model":{"type":"BPE","vocab":[],"merges":[]}})"));
  EXPECT_TRUE(refused(R"({"model":{"type":"BPE","vocab":{"a":-1},"merges":[]}})"));
  EXPECT_TRUE(refused(R"({"model":{"type":"BPE","vocab":{"a":2147483647},"merges":[]}})"));
  EXPECT_TRUE(refused(R"({"model":{"type":"BPE","vocab":{"a":1e3},"merges":[]}})"));
  EXPECT_TRUE(refused(R"({"model":{"type":"BPE","vocab":{"a":1,"b":1},"merges":[]}})"));
  EXPECT_TRUE(refused(R"({"model":{"type":"BPE","vocab":{"a":1},"merges":[],"unk_token":"u"}})"));
  EXPECT_TRUE(refused(
      R"({"model":{"type":"WordPiece","vocab":{"a":1},"unk_token":"u","continuing_subword_prefix":"##","max_input_chars_per_word":100}})"));
  Json json = letters_json();
  json["post_processor"] = text::template_json(2, 3);
  EXPECT_TRUE(refused(json.dump()));  // ids that the vocabulary does not have
  json = letters_json();
  json["added_tokens"].push_back(added(100, "x y"));
  EXPECT_TRUE(refused(json.dump()));  // two tokens for one id
  json = letters_json();
  json["added_tokens"].push_back(added(7, "a"));
  EXPECT_TRUE(refused(json.dump()));  // two ids for one token
}

TEST(Tokenizer, what_is_not_known_is_refused_by_name) {
  const auto refused = [](const char* part, const char* json) {
    Json whole = letters_json();
    whole[part] = Json::parse(json);
    try {
      tokenizer_of(whole);
    } catch (const UnsupportedError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  for (const char* part : {"normalizer", "pre_tokenizer", "decoder", "post_processor"})
    EXPECT_NE(refused(part, R"({"type":"X"})").find("'X'"), std::string::npos) << part;
  EXPECT_NE(refused("model", R"({"type":"X","vocab":{}})").find("'X'"), std::string::npos);
  EXPECT_NE(refused("model", R"({"type":"BPE","vocab":{"a":1},"merges":[],"dropout":0.1})")
                .find("dropout"),
            std::string::npos);
  EXPECT_EQ(refused("model", R"({"type":"BPE","vocab":{"a":1},"merges":[],"dropout":0.0})"), "");
  EXPECT_NE(refused("pre_tokenizer",
                    R"({"type":"Split","pattern":{"String":"a"},"behavior":"X","invert":false})")
                .find("'X'"),
            std::string::npos);
  EXPECT_NE(refused("pre_tokenizer", R"({"type":"Metaspace","prepend_scheme":"X"})").find("'X'"),
            std::string::npos);
}

TEST(Tokenizer, options_of_byte_pair_models) {
  Json json = letters_json();
  json["model"]["vocab"]["abc"] = 600;
  json["model"]["ignore_merges"] = true;
  EXPECT_EQ(tokenizer_of(json).encode("abc abcd").ids, (Ids{600, 99, 100, 101, 102, 103}));
  json = letters_json();
  json["model"]["unk_token"] = "z";
  EXPECT_EQ(tokenizer_of(json).encode("aXXb").ids, (Ids{100, 125, 125, 101}));
  json["model"]["fuse_unk"] = true;
  const Encoding e = tokenizer_of(json).encode("aXXb");
  EXPECT_EQ(e.ids, (Ids{100, 125, 101}));
  EXPECT_EQ(e.offsets, (Offsets{{0, 1}, {1, 3}, {3, 4}}));
}

TEST(Tokenizer, word_pieces_decode_with_english_spacing) {
  const Tokenizer tokenizer = tokenizer_of(
      word_piece_json({"[UNK]", "do", "n", "'", "t", ".", "stop", "##ping", ","}, true, true));
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("stop, stopping.").ids), "stop, stopping.");
}

// Texts and ids of other implementations: .inp holds texts between marker lines, .out one line of
// ids each.
void check_vectors(const std::string& name, const Tokenizer& tokenizer) {
  QKV_SHARED_OR_SKIP(folder, "data/tokenizers/ggml-vocab");
  std::string text = read_file(folder / (name + ".gguf.inp"));
  const std::string out = read_file(folder / (name + ".gguf.out"));
  const std::string marker = "\n__ggml_vocab_test__\n";
  EncodeOptions options;
  options.add_special_tokens = false;
  options.parse_special = false;
  int checked = 0;
  for (std::size_t at = 0, line = 0; at < text.size() && line < out.size(); ++checked) {
    const std::size_t end = text.find(marker, at), stop = out.find('\n', line);
    std::string expected;
    for (const std::int32_t id : tokenizer.encode(text.substr(at, end - at), options).ids) {
      expected += ' ';
      expected += std::to_string(id);
    }
    EXPECT_EQ(expected, out.substr(line, stop - line)) << text.substr(at, end - at);
    if (end == std::string::npos) break;
    at = end + marker.size();
    line = stop + 1;
  }
  EXPECT_GT(checked, 40);
}

TEST(Tokenizer, gpt2_vectors) {
  QKV_SHARED_OR_SKIP(folder, "data/tokenizers/gpt2");
  check_vectors("ggml-vocab-gpt-2", Tokenizer::load(folder));
}

TEST(Tokenizer, bert_vectors) {
  QKV_SHARED_OR_SKIP(folder, "data/tokenizers/bert-base-uncased");
  check_vectors("ggml-vocab-bert-bge", Tokenizer::load(folder));
}

TEST(Tokenizer, bert_from_its_vocabulary_file) {
  QKV_SHARED_OR_SKIP(uncased, "data/tokenizers/bert-base-uncased");
  QKV_SHARED_OR_SKIP(chinese, "data/tokenizers/bert-base-chinese");
  const TempFolder folder;
  folder.write("vocab.txt", read_file(uncased / "vocab.txt"));
  const Tokenizer old = Tokenizer::load(folder.path()), json = Tokenizer::load(uncased);
  EXPECT_EQ(old.vocab_size(), 30522);
  for (const char* text : {"Hello, WORLD!", "naïve [MASK] unaffable", "東京 tower", ""}) {
    EXPECT_EQ(old.encode(text).ids, json.encode(text).ids);
  }
  EXPECT_EQ(Tokenizer::load(chinese).encode("你好").tokens, (Words{"[CLS]", "你", "好", "[SEP]"}));
  folder.write("tokenizer_config.json", R"({"do_lower_case":false})");
  EXPECT_NE(Tokenizer::load(folder.path()).encode("HELLO").ids, json.encode("HELLO").ids);
}

}  // namespace
