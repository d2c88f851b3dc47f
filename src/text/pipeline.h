// The whole of a tokenizer: its parts in order. Tokenizer is its public face.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "qkv/tokenizer.h"

#include "base/function_ref.h"
#include "base/json.h"
#include "text/added_tokens.h"
#include "text/decoder.h"
#include "text/normalizer.h"
#include "text/post_processor.h"
#include "text/pre_tokenizer.h"
#include "text/token_model.h"

namespace qkv::inline v0::text {

// What finds words: enough for training, where there is no vocabulary yet.
class WordFinder {
 public:
  // From the "normalizer", "pre_tokenizer" and "added_tokens" of a tokenizer.json.
  explicit WordFinder(const Json& json);

  // Calls token(id, original span) and words(text, its words) in the order of the text.
  void find(std::string_view text, bool parse_special, bool track,
            FunctionRef<void(std::int32_t, Span)> token,
            FunctionRef<void(const AlignedText&, const std::vector<Span>&)> words) const;

  const std::vector<AddedToken>& added_tokens() const { return added_; }
  bool byte_level() const { return byte_level_; }

 private:
  std::unique_ptr<const Normalizer> normalizer_;
  std::unique_ptr<const PreTokenizer> pre_tokenizer_;
  bool byte_level_ = false;
  std::vector<AddedToken> added_;
  AddedTokenFinder in_original_, in_normalized_;
};

// tokenizer.json from the older files of a folder: vocab.json with merges.txt, or vocab.txt.
// ModelError if there are none.
Json json_of_older_files(const std::filesystem::path& folder);

// The merges of a merges.txt: only a first line that begins with "#version" is skipped.
Json parse_merges_text(std::string_view text);

}  // namespace qkv::inline v0::text

namespace qkv::inline v0 {

struct Tokenizer::Impl {
  // `json` is a tokenizer.json, `config` a tokenizer_config.json (an object, may be empty).
  Impl(Json json, Json config);

  Json json, config;
  text::WordFinder words;
  std::unique_ptr<const text::TokenModel> model;
  std::unique_ptr<const text::Decoder> decoder;
  text::PostProcessor post;
  std::vector<std::string> tokens;  // by id; empty: a hole
  std::vector<bool> special;        // by id
  std::unordered_map<std::string, std::int32_t> ids;
  std::map<std::string, std::int32_t, std::less<>> roles;

 private:
  void add_token(const std::string& token, std::int64_t id);
  void find_roles();
};

}  // namespace qkv::inline v0
