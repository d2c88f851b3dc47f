// What generation and scoring need of a model: streams of tokens that grow, and logits of what
// comes next.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "qkv/tensor.h"

namespace qkv::inline v0::infer {

// Tokens to append to one stream.
struct StreamTokens {
  std::int64_t stream = 0;
  std::span<const std::int32_t> ids;  // at least one
};

enum class LogitsOf { kLastTokens, kAllTokens };

// The streams of one caller, each with its own cache. Not thread-safe; sessions of one model are
// independent.
class DecodingSession {
 public:
  virtual ~DecodingSession() = default;
  virtual std::int64_t open() = 0;                             // a new stream without tokens
  virtual std::int64_t fork(std::int64_t stream) = 0;          // a copy that goes on by itself
  virtual void close(std::int64_t stream) = 0;                 // gives its memory back
  virtual std::int64_t length(std::int64_t stream) const = 0;  // tokens appended so far
  // Appends to each of the streams (every one at most once) and returns logits, fp32: of each
  // part's last token [parts, W], or of all tokens in order [T, W]; W >= vocabulary. A row's bits
  // do not depend on the other parts, nor on how a stream's tokens were cut into calls for as long
  // as docs/generation.md says so. DataError if a stream would be longer than the context; the
  // streams are then as before.
  virtual Tensor append(std::span<const StreamTokens> parts, LogitsOf which) = 0;
};

// Immutable; thread-safe.
class LanguageModel {
 public:
  struct Facts {
    std::int64_t vocabulary = 0;          // ids below it may be emitted, whatever the logits' width
    std::optional<std::int64_t> context;  // most tokens of a stream, prompt included
    std::optional<std::int32_t> bos;      // begins a text
    std::vector<std::int32_t> end_ids;    // end a text
  };
  virtual ~LanguageModel() = default;
  virtual const Facts& facts() const = 0;
  virtual std::unique_ptr<DecodingSession> start() const = 0;
};

}  // namespace qkv::inline v0::infer
