// Text to token ids and back. The engine and file form follow Hugging Face's tokenizer.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "qkv/version.h"

namespace qkv::inline v0 {

struct Encoding {
  std::vector<std::int32_t> ids;
  std::vector<std::string> tokens;  // pieces as in the vocabulary
  std::vector<std::pair<std::int64_t, std::int64_t>>
      offsets;  // [start, end) in characters of the original text; (0, 0) for added specials
};

struct EncodeOptions {
  bool add_special_tokens =
      true;  // [CLS] ... [SEP] and the like, as the tokenizer's post-processor says
  bool parse_special =
      true;  // special tokens written in the text become their ids; false: plain text
  bool with_pieces = true;  // fill tokens and offsets, not only ids
};

enum class TokenizerKind { kChar, kBpe, kWordPiece };

struct TokenizerOptions {
  TokenizerKind kind = TokenizerKind::kBpe;
  std::int64_t vocab_size = 3000;  // at most, special tokens included
  std::int64_t min_frequency = 2;
  bool lowercase = false;  // WordPiece: BERT's uncased normaliser (accents too); else letters only
  bool cls_sep = true;  // [CLS] text [SEP], for every kind: pooling = "first" needs [CLS], and no
                        // text is empty
};

// Immutable after construction; encode and decode are thread-safe.
// Errors: DataError for text that is not UTF-8 (with the byte's position), ModelError for bad
// files, ArgumentError for ids outside the vocabulary in decode.
class QKV_API Tokenizer {
 public:
  // From tokenizer.json in a folder (or that file itself).
  static Tokenizer load(const std::filesystem::path& folder);
  // Learns a vocabulary. Deterministic. Special tokens [PAD] [UNK] [CLS] [SEP] [MASK] get ids 0..4.
  static Tokenizer train(std::span<const std::string> texts, const TokenizerOptions& options);
  void save(const std::filesystem::path& folder) const;  // tokenizer.json and tokenizer_config.json

  Encoding encode(std::string_view text, const EncodeOptions& options = {}) const;
  std::string decode(std::span<const std::int32_t> ids, bool skip_special_tokens = true) const;

  std::int64_t vocab_size() const;
  std::optional<std::int32_t> token_id(std::string_view token) const;
  const std::string& token(std::int32_t id) const;  // ArgumentError outside the vocabulary
  // Ids of "pad", "unk", "cls", "sep", "mask" where the tokenizer has them.
  std::optional<std::int32_t> special_id(std::string_view role) const;

  struct Impl;
  explicit Tokenizer(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

 private:
  std::shared_ptr<const Impl> impl_;
};

}  // namespace qkv::inline v0
