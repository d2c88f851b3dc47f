// An encoder with its tokenizer: texts in, vectors, labels or tokens out.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "qkv/tokenizer.h"

#include "models/checkpoint.h"
#include "models/sentence_settings.h"

namespace qkv::inline v0 {

// A text ready for the model.
struct TextTokens {
  std::vector<std::int32_t> ids, types;
  // [start, end) in characters of the text, (0, 0) for added special tokens.
  std::vector<std::pair<std::int64_t, std::int64_t>> offsets;
  bool cut = false;
};

// Immutable after loading; thread-safe. Texts are computed in packed batches of about the same
// length, several at a time; a text's numbers do not depend on the others.
class TextModel {
 public:
  // Weights are read only and packed at their first use. ModelError as load_checkpoint() and the
  // tokenizer say; where the tokenizer knows more tokens than the embedding has rows; for a
  // decoder. head: another one than the file's; kNone for embeddings.
  static TextModel load(const std::filesystem::path& folder,
                        std::optional<HeadKind> head = std::nullopt);

  const Transformer& model() const { return checkpoint_.model; }
  const Json& config() const { return checkpoint_.config; }
  const Tokenizer& tokenizer() const { return tokenizer_; }
  const SentenceSettings& settings() const { return settings_; }
  // Most tokens of a text, special ones included: the least of what the position table, the
  // tokenizer and sentence-transformers' files say.
  std::int64_t max_length() const { return max_length_; }

  // Tokens of a text, or of a pair of texts. DataError for one that is longer than max_length();
  // with `truncate` it is cut in front of its closing special tokens, of a pair the longer text.
  TextTokens tokens(const std::string& text, bool truncate) const;
  TextTokens tokens(const std::string& first, const std::string& second, bool truncate) const;
  // Windows of at most `length` tokens, special ones included, each with the last `overlap` tokens
  // of the one before; at least one. ArgumentError unless the text has room and moves on.
  std::vector<TextTokens> windows(const std::string& text, std::int64_t length,
                                  std::int64_t overlap) const;

  // Pooled and, where the settings say so, normalised vectors, [texts, C] fp32.
  Tensor embed(std::span<const TextTokens> texts) const;
  // Calls visit(i, logits) once for each text, in any order but one at a time: the head's logits of
  // this text alone, [1, labels], or [tokens, V] for heads on tokens. rows: only these tokens of
  // each text; a text without any is not visited.
  using Visitor = std::function<void(std::size_t text, const Tensor& logits)>;
  void each_logits(std::span<const TextTokens> texts, const Visitor& visit,
                   std::span<const std::vector<std::int64_t>> rows = {}) const;

 private:
  TextModel(Checkpoint checkpoint, Tokenizer tokenizer, SentenceSettings settings);
  // Batches of indices of texts, and f(indices, hidden [T, C], context) for each.
  using HiddenVisitor = std::function<void(std::span<const std::size_t>, Context&, const Var&)>;
  void each_hidden(std::span<const TextTokens> texts, const HiddenVisitor& f) const;
  TextTokens checked(Encoding encoding, bool truncate) const;

  Checkpoint checkpoint_;
  Tokenizer tokenizer_;
  SentenceSettings settings_;
  std::int64_t max_length_ = 0;
};

}  // namespace qkv::inline v0
