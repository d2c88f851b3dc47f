// The whole of a tokenizer: its parts in order. Tokenizer is its public face.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "qkv/tokenizer.h"

#include "base/function_ref.h"
#include "base/json.h"
#include "text/added_tokens.h"
#include "text/decoder.h"
#include "text/normalizer.h"
#include "text/piece_table.h"
#include "text/post_processor.h"
#include "text/pre_tokenizer.h"
#include "text/token_model.h"

namespace qkv::inline v0::text {

// What finds words: enough for training, where there is no vocabulary yet.
class WordFinder {
 public:
  // From the "normalizer", "pre_tokenizer" and "added_tokens" of a tokenizer.json. With
  // `plain_bytes`, words of a ByteLevel pre-tokenizer are bytes, not visible characters.
  // `normalizer`, if there is one, stands in for the file's.
  explicit WordFinder(const Json& json, bool plain_bytes = true,
                      std::unique_ptr<const Normalizer> normalizer = nullptr);

  // Calls token(id, original span) and words(text, its words) in the order of the text.
  void find(std::string_view text, bool parse_special, bool track,
            FunctionRef<void(std::int32_t, Span)> token,
            FunctionRef<void(const AlignedText&, const std::vector<Span>&)> words) const;

  const std::vector<AddedToken>& added_tokens() const { return added_; }
  bool byte_level() const { return byte_level_; }

 private:
  void find_words(AlignedText& piece,
                  FunctionRef<void(const AlignedText&, const std::vector<Span>&)> words) const;

  std::unique_ptr<const Normalizer> normalizer_;
  std::unique_ptr<const PreTokenizer> pre_tokenizer_;
  bool byte_level_ = false;
  bool needs_origins_ = false;  // some word depends on where in the text it lies
  std::vector<AddedToken> added_;
  AddedTokenFinder in_original_, in_normalized_;
};

// For `save`, where a tokenizer.json is not the whole: makes it so, of the tokens by id.
using SavedJson = std::function<Json(Json, const std::vector<std::string>&)>;

// All that a tokenizer is made of, from whatever file.
struct TokenizerParts {
  Json json;    // a tokenizer.json, the model's vocabulary may be left out
  Json config;  // a tokenizer_config.json (an object, may be empty)
  Vocabulary vocabulary;
  std::unique_ptr<const TokenModel> model;
  std::unique_ptr<const Normalizer> normalizer;  // null: the one of `json`
  bool plain_bytes = true;
  SavedJson saved_json;
  // For `save`, in place of tokenizer.json: name and bytes.
  std::vector<std::pair<std::string, std::string>> files;
};
TokenizerParts parts_of_json(Json json, Json config);

// The settings of a tokenizer.json.
std::optional<Truncation> parse_truncation(const Json& json);
std::optional<Padding> parse_padding(const Json& json);

// Windows [begin, end) of `count` tokens, at most `room` long, that overlap by `stride`; the first
// one is what truncation keeps.
std::vector<std::pair<std::size_t, std::size_t>> windows_of(std::size_t count, std::size_t room,
                                                            std::size_t stride, bool left);
void pad_to(Encoding& encoding, std::size_t length, const Padding& padding, bool with_pieces);
std::size_t padded_length(std::size_t length, const Padding& padding);

// A token of this content that is found in the text before anything else.
Json special_token_json(const std::string& content, std::int32_t id);

// From the older files of a folder: vocab.json with merges.txt, vocab.txt, or a SentencePiece
// .model; or from such a .model itself. ModelError if there are none.
TokenizerParts parts_of_older_files(const std::filesystem::path& place, Json config);

// The merges of a merges.txt: only a first line that begins with "#version" is skipped.
Json parse_merges_text(std::string_view text);

}  // namespace qkv::inline v0::text

namespace qkv::inline v0 {

struct Tokenizer::Impl {
  // Of these ids, as the vocabulary writes them. ArgumentError for those it does not hold.
  std::vector<std::string> pieces(std::span<const std::int32_t> given, bool skip_special) const;
  explicit Impl(text::TokenizerParts parts);

  Json json, config;
  text::WordFinder words;
  std::unique_ptr<const text::TokenModel> model;
  std::unique_ptr<const text::Decoder> decoder;
  text::PostProcessor post;
  std::optional<Truncation> truncation;
  std::optional<Padding> padding;
  std::vector<std::string> tokens;   // by id
  std::vector<bool> known, special;  // by id; an id that is not known is a hole
  text::PieceTable ids;
  std::map<std::string, std::int32_t, std::less<>> roles;
  text::SavedJson saved_json;
  std::vector<std::pair<std::string, std::string>> files;

  bool knows(std::int64_t id) const {
    return id >= 0 && id < std::ssize(tokens) && known[static_cast<std::size_t>(id)];
  }

 private:
  void add_token(const std::string& token, std::int64_t id);
  void check_template() const;
  void find_roles();
};

}  // namespace qkv::inline v0
