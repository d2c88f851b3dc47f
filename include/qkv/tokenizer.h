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
      offsets;  // [start, end) in characters of the text it came from; (0, 0) for added specials
  std::vector<std::int32_t> type_ids;        // as the tokenizer's post-processor says, else 0 and 1
  std::vector<std::int32_t> sequence_ids;    // 0: of the first text, 1: of the second, -1: neither
  std::vector<std::int32_t> attention_mask;  // 0 for padding, else 1
  std::vector<Encoding> overflowing;  // what truncation cut off, as further windows of the text
};

// Which text of a pair is cut: the longer one until both are equally long, or always the same one.
enum class TruncationStrategy { kLongestFirst, kOnlyFirst, kOnlySecond };

struct Truncation {
  std::int64_t max_length = 512;  // tokens, special ones included
  std::int64_t stride = 0;        // tokens that a window repeats of the one before
  TruncationStrategy strategy = TruncationStrategy::kLongestFirst;
  bool left = false;  // keep the end of the text, not its beginning
};

struct Padding {
  std::int64_t length = 0;       // 0: as long as the longest of the batch
  std::int64_t multiple_of = 0;  // round the length up; 0: do not
  bool left = false;
  std::int32_t id = 0, type_id = 0;
  std::string token = "[PAD]";
};

struct EncodeOptions {
  bool add_special_tokens =
      true;  // [CLS] ... [SEP] and the like, as the tokenizer's post-processor says
  bool parse_special =
      true;  // special tokens written in the text become their ids; false: plain text
  bool with_pieces = true;       // fill tokens and offsets too
  bool replace_invalid = false;  // one U+FFFD for each maximal invalid part, not an error
  std::optional<Truncation> truncation;
  std::optional<Padding> padding;
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
// files, ArgumentError for ids outside the vocabulary in decode and for a truncation that leaves no
// room for the text or whose stride is not below that room.
class QKV_API Tokenizer {
 public:
  // From tokenizer.json in a folder (or that file itself); without one, from a SentencePiece
  // .model, vocab.json with merges.txt, or vocab.txt.
  static Tokenizer load(const std::filesystem::path& folder);
  // Learns a vocabulary. Deterministic. Special tokens [PAD] [UNK] [CLS] [SEP] [MASK] get ids 0..4.
  static Tokenizer train(std::span<const std::string> texts, const TokenizerOptions& options);
  void save(const std::filesystem::path& folder) const;  // tokenizer.json and tokenizer_config.json

  Encoding encode(std::string_view text, const EncodeOptions& options = {}) const;
  Encoding encode_pair(std::string_view first, std::string_view second,
                       const EncodeOptions& options = {}) const;
  // Each text as encode does it, in parallel; padded to one length where that is asked for.
  std::vector<Encoding> encode_batch(std::span<const std::string> texts,
                                     const EncodeOptions& options = {}) const;
  std::string decode(std::span<const std::int32_t> ids, bool skip_special_tokens = true) const;
  // The same without replacing what is no UTF-8 (yet): for text that grows token by token.
  std::string decode_bytes(std::span<const std::int32_t> ids,
                           bool skip_special_tokens = true) const;

  std::int64_t vocab_size() const;
  std::optional<std::int32_t> token_id(std::string_view token) const;
  const std::string& token(std::int32_t id) const;  // ArgumentError outside the vocabulary
  // The settings of the file, which encode does not use unless they are put into its options.
  const std::optional<Truncation>& truncation() const;
  const std::optional<Padding>& padding() const;

  // Ids of "pad", "unk", "cls", "sep", "mask" where the tokenizer has them.
  std::optional<std::int32_t> special_id(std::string_view role) const;

  struct Impl;
  explicit Tokenizer(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

 private:
  std::shared_ptr<const Impl> impl_;
};

}  // namespace qkv::inline v0
