#include "text/embedded_vocabulary.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "base/file.h"
#include "text/pipeline.h"
#include "text/sentence_piece.h"

namespace qkv::inline v0::text {
namespace {

// How words are cut, by the names that GGUF's writers use. Source: each model's own tokenizer.json
// and llama.cpp's list of the same.
constexpr const char* kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr const char* kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kGpt4o =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kTekken =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kPunctuation = R"([\p{P}\$\+<=>\^~\|]+)";
constexpr const char* kThreeDigits = "[0-9][0-9][0-9]";
constexpr const char* kDigit = R"(\p{N})";

struct PreKind {
  const char* name;
  std::vector<const char*> patterns;
  bool whole_words = false;  // ignore_merges
};

const std::vector<PreKind>& pre_kinds() {
  static const std::vector<PreKind> kinds = {
      {"", {kGpt2}},
      {"gpt-2", {kGpt2}},
      {"gpt2", {kGpt2}},
      {"phi-2", {kGpt2}},
      {"mpt", {kGpt2}},
      {"olmo", {kGpt2}},
      {"jina-en", {kGpt2}},
      {"roberta-bpe", {kGpt2}},
      {"default", {kPunctuation, kGpt2, R"(\p{N}+)", kThreeDigits}},
      {"falcon", {R"([\p{P}\$\+<=>\^~\|`]+)", kGpt2, kThreeDigits}},
      {"llama3", {kLlama3}, true},
      {"llama-v3", {kLlama3}, true},
      {"llama-bpe", {kLlama3}, true},
      {"falcon3", {kLlama3}, true},
      {"dbrx", {kLlama3}},
      {"smaug-bpe", {kLlama3}},
      {"qwen2", {kQwen2}},
      {"stablelm2", {kQwen2}},
      {"deepseek-r1-qwen", {kQwen2}},
      {"smollm", {kDigit, kGpt2}},
      {"starcoder", {kDigit, kGpt2}},
      {"refact", {kDigit, kGpt2}},
      {"command-r", {kDigit, kGpt2}},
      {"codeshell", {kDigit, kGpt2}},
      {"gpt-4o", {kGpt4o}},
      {"llama4", {kGpt4o}},
      {"tekken", {kTekken}, true},
  };
  return kinds;
}

const PreKind& pre_kind(const std::string& name) {
  std::string known;
  for (const PreKind& kind : pre_kinds()) {
    if (name == kind.name) return kind;
    if (kind.name[0] != '\0') known += (known.empty() ? "" : ", ") + std::string(kind.name);
  }
  fail<UnsupportedError>("tokenizer", "expected the pre-tokenizer {}, got '{}'", known, name);
}

using Ids = std::vector<std::pair<std::string, std::int32_t>>;

PieceType type_of(const EmbeddedVocabulary& v, std::size_t i) {
  return v.types.empty() ? PieceType::kNormal : static_cast<PieceType>(v.types[i]);
}

void check(const EmbeddedVocabulary& v) {
  const std::size_t count = v.tokens.size();
  require<ModelError>(count > 0 && count < (std::size_t{1} << 30), "tokenizer",
                      "expected a vocabulary of tokens, got {}", count);
  require<ModelError>(v.types.empty() || v.types.size() == count, "tokenizer",
                      "expected one token type for each of {} tokens, got {}", count,
                      v.types.size());
  for (const std::optional<std::int32_t>& id : {v.bos, v.eos, v.unknown, v.padding}) {
    require<ModelError>(!id || (*id >= 0 && static_cast<std::size_t>(*id) < count), "tokenizer",
                        "expected the ids of special tokens below {}, got {}", count,
                        id.value_or(0));
  }
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t bad = find_invalid_utf8(v.tokens[i]);
    require<ModelError>(bad == std::string::npos, "tokenizer",
                        "expected tokens in UTF-8, got an invalid byte at position {} of token {}",
                        bad, i);
  }
}

// Tokens that are found in the text before anything else.
Json added_tokens(const EmbeddedVocabulary& v) {
  Json::Array added;
  for (std::size_t i = 0; i < v.tokens.size(); ++i) {
    const PieceType type = type_of(v, i);
    const bool special = type == PieceType::kControl || type == PieceType::kUnknown;
    if (v.tokens[i].empty() || !(special || type == PieceType::kUserDefined)) continue;
    AddedToken token;
    token.id = static_cast<std::int32_t>(i);
    token.content = v.tokens[i];
    token.special = special;
    added.push_back(added_token_json(token));
  }
  return Json(std::move(added));
}

Json config_json(const EmbeddedVocabulary& v) {
  Json config(Json::Object{{"tokenizer_class", "PreTrainedTokenizerFast"},
                           {"clean_up_tokenization_spaces", false},
                           {"add_bos_token", v.add_bos},
                           {"add_eos_token", v.add_eos}});
  const auto add = [&](const char* key, const std::optional<std::int32_t>& id) {
    if (id) config[key] = v.tokens[static_cast<std::size_t>(*id)];
  };
  add("bos_token", v.bos);
  add("eos_token", v.eos);
  add("unk_token", v.unknown);
  add("pad_token", v.padding);
  return config;
}

Json template_of(const EmbeddedVocabulary& v) {
  Ids before, after;
  const auto add = [&](Ids& to, const std::optional<std::int32_t>& id) {
    require<ModelError>(id.has_value(), "tokenizer",
                        "expected the id of the special token to add, got none");
    to.emplace_back(v.tokens[static_cast<std::size_t>(*id)], *id);
  };
  if (v.add_bos) add(before, v.bos);
  if (v.add_eos) add(after, v.eos);
  return before.empty() && after.empty() ? Json() : around_json(before, after);
}

Vocabulary vocabulary_of(const std::vector<std::string>& tokens) {
  Vocabulary vocabulary;
  vocabulary.reserve(tokens.size());
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    vocabulary.emplace_back(tokens[i], static_cast<std::int32_t>(i));
  }
  return vocabulary;
}

Json vocabulary_json(const std::vector<std::string>& tokens) {
  Json::Object object;
  object.reserve(tokens.size());
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (!tokens[i].empty()) object.emplace_back(tokens[i], Json(static_cast<std::int64_t>(i)));
  }
  return Json(std::move(object));
}

Json byte_level_json(bool use_regex) {
  return Json(Json::Object{{"type", "ByteLevel"},
                           {"add_prefix_space", false},
                           {"trim_offsets", false},
                           {"use_regex", use_regex}});
}

Json split_json(const PreKind& kind) {
  const bool by_hand = kind.patterns.back() == kGpt2;  // by code that is faster than the pattern
  Json::Array parts;
  for (std::size_t i = 0; i + (by_hand ? 1 : 0) < kind.patterns.size(); ++i) {
    parts.push_back(Json::Object{{"type", "Split"},
                                 {"pattern", Json::Object{{"Regex", kind.patterns[i]}}},
                                 {"behavior", "Isolated"},
                                 {"invert", false}});
  }
  parts.push_back(byte_level_json(by_hand));
  return Json(Json::Object{{"type", "Sequence"}, {"pretokenizers", std::move(parts)}});
}

TokenizerParts gpt2_parts(const EmbeddedVocabulary& v) {
  const PreKind& kind = pre_kind(v.pre);
  MergeList merges;
  merges.reserve(v.merges.size());
  for (const std::string_view merge : v.merges) {
    const std::size_t space = merge.find(' ', 1);
    require<ModelError>(space != std::string_view::npos && space + 1 < merge.size(), "tokenizer",
                        "expected a merge of two pieces with a space between them, got '{}'",
                        merge);
    merges.emplace_back(merge.substr(0, space), merge.substr(space + 1));
  }
  BpeOptions options;
  options.byte_level = true;
  options.ignore_merges = kind.whole_words;
  TokenizerParts parts;
  parts.vocabulary = vocabulary_of(v.tokens);
  parts.model = make_bpe(parts.vocabulary, merges, options);
  parts.config = config_json(v);
  parts.json = Json(Json::Object{{"version", "1.0"},
                                 {"truncation", nullptr},
                                 {"padding", nullptr},
                                 {"added_tokens", added_tokens(v)},
                                 {"normalizer", nullptr},
                                 {"pre_tokenizer", split_json(kind)},
                                 {"post_processor", template_of(v)},
                                 {"decoder", byte_level_json(true)},
                                 {"model", nullptr}});
  std::string lines;  // one piece of memory for all merges: a model is loaded more often than saved
  for (const std::string& merge : v.merges) (lines += merge) += '\n';
  parts.saved_json = [lines = std::move(lines), whole = kind.whole_words](
                         Json frame, const std::vector<std::string>& tokens) {
    frame["model"] = Json::Object{{"type", "BPE"},
                                  {"ignore_merges", whole},
                                  {"vocab", vocabulary_json(tokens)},
                                  {"merges", parse_merges_text(lines)}};
    return frame;
  };
  return parts;
}

// BERT's vocabulary with the marks of SentencePiece: words begin with U+2581, other pieces have
// nothing in front.
TokenizerParts bert_parts(const EmbeddedVocabulary& v) {
  constexpr std::string_view kMark = "\u2581";
  Json::Object tokens;
  std::optional<std::int32_t> cls, sep, unknown = v.unknown;
  for (std::size_t i = 0; i < v.tokens.size(); ++i) {
    const std::string& token = v.tokens[i];
    const auto id = static_cast<std::int32_t>(i);
    if (token == "[CLS]") cls = id;
    if (token == "[SEP]") sep = id;
    if (token == "[UNK]" && !unknown) unknown = id;
    const bool begins = token.starts_with(kMark);
    const bool plain = type_of(v, i) != PieceType::kNormal ||
                       (token.size() > 2 && token.front() == '[' && token.back() == ']');
    std::string name = begins ? token.substr(kMark.size()) : plain ? token : "##" + token;
    tokens.emplace_back(std::move(name), Json(std::int64_t{id}));
  }
  require<ModelError>(cls && sep && unknown, "tokenizer",
                      "expected [CLS], [SEP] and [UNK] in the vocabulary, got a vocabulary "
                      "without one of them");
  Json model(Json::Object{{"type", "WordPiece"},
                          {"unk_token", v.tokens[static_cast<std::size_t>(*unknown)]},
                          {"continuing_subword_prefix", "##"},
                          {"max_input_chars_per_word", 100}});
  model["vocab"] = Json(std::move(tokens));
  Json json(Json::Object{{"version", "1.0"},
                         {"truncation", nullptr},
                         {"padding", nullptr},
                         {"added_tokens", added_tokens(v)},
                         {"normalizer", bert_normalizer_json({})},
                         {"pre_tokenizer", Json::Object{{"type", "BertPreTokenizer"}}},
                         {"post_processor", template_json(*cls, *sep)},
                         {"decoder", Json::Object{{"type", "WordPiece"}, {"prefix", "##"}}},
                         {"model", std::move(model)}});
  return parts_of_json(std::move(json), config_json(v));
}

TokenizerParts llama_parts(const EmbeddedVocabulary& v) {
  require<ModelError>(v.scores.size() == v.tokens.size(), "tokenizer",
                      "expected one score for each of {} tokens, got {}", v.tokens.size(),
                      v.scores.size());
  SentencePieceModel model;
  model.bpe = true;
  model.pieces.pieces = v.tokens;
  model.pieces.scores = v.scores;
  for (std::size_t i = 0; i < v.tokens.size(); ++i)
    model.pieces.types.push_back(static_cast<std::int32_t>(type_of(v, i)));
  model.pieces.unknown = v.unknown.value_or(0);
  model.pieces.byte_fallback = std::count(model.pieces.types.begin(), model.pieces.types.end(),
                                          static_cast<std::int32_t>(PieceType::kByte)) == 256;
  model.add_dummy_prefix = v.add_space_prefix;
  model.remove_extra_whitespaces = false;
  return parts_of_sentence_piece(std::move(model), template_of(v), config_json(v));
}

}  // namespace

Tokenizer make_tokenizer(const EmbeddedVocabulary& vocabulary) {
  check(vocabulary);
  const auto make = [&] {
    if (vocabulary.model == "gpt2") return gpt2_parts(vocabulary);
    if (vocabulary.model == "llama") return llama_parts(vocabulary);
    if (vocabulary.model == "bert") return bert_parts(vocabulary);
    fail<UnsupportedError>("tokenizer",
                           "expected a vocabulary of kind gpt2, llama or bert, got '{}'",
                           vocabulary.model);
  };
  return Tokenizer(std::make_shared<const Tokenizer::Impl>(make()));
}

EmbeddedVocabulary read_llama2c_vocabulary(const std::filesystem::path& path,
                                           std::int64_t vocab_size) {
  static_assert(std::endian::native == std::endian::little);
  const std::string file = read_file(path);
  std::string_view rest = file;
  const auto take = [&](auto& value) {
    require<ModelError>(rest.size() >= sizeof(value), "tokenizer",
                        "expected a llama2.c vocabulary in '{}', got a file that ends early",
                        path.string());
    std::memcpy(&value, rest.data(), sizeof(value));
    rest.remove_prefix(sizeof(value));
  };
  std::int32_t longest = 0;
  take(longest);
  EmbeddedVocabulary v;
  v.model = "llama";
  while (vocab_size > 0 ? std::ssize(v.tokens) < vocab_size : !rest.empty()) {
    float score = 0;
    std::int32_t size = 0;
    take(score);
    take(size);
    require<ModelError>(size >= 0 && static_cast<std::size_t>(size) <= rest.size(), "tokenizer",
                        "expected a token of at most {} bytes in '{}', got a length of {}",
                        rest.size(), path.string(), size);
    std::string token(rest.substr(0, static_cast<std::size_t>(size)));
    rest.remove_prefix(static_cast<std::size_t>(size));
    // Blanks are written as they are, the marks of begin and end with line breaks around them.
    const std::size_t id = v.tokens.size();
    PieceType type = PieceType::kNormal;
    if (id <= 2) {
      type = id == 0 ? PieceType::kUnknown : PieceType::kControl;
      std::erase(token, '\n');
    } else if (byte_of_token(token) >= 0) {
      type = PieceType::kByte;
    }
    for (std::size_t at = token.find(' '); at != std::string::npos; at = token.find(' ', at))
      token.replace(at, 1, "\u2581");
    v.tokens.push_back(std::move(token));
    v.scores.push_back(score);
    v.types.push_back(static_cast<std::int32_t>(type));
  }
  require<ModelError>(v.tokens.size() > 2, "tokenizer",
                      "expected a llama2.c vocabulary of more than 2 tokens in '{}', got {}",
                      path.string(), v.tokens.size());
  v.unknown = 0;
  v.bos = 1;
  v.eos = 2;
  v.add_bos = true;
  return v;
}

}  // namespace qkv::inline v0::text
