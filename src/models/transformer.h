// The one trunk of all families, encoders and decoders, with the head that follows it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "autograd/context.h"
#include "models/transformer_config.h"
#include "nn/module.h"

namespace qkv::inline v0 {

// What a token has besides its id.
struct TokenExtras {
  std::span<const std::int32_t> types;  // T token types (segments); empty: all are 0
};

// Forward passes of one model may run in several threads at once, each with its own Context, while
// nobody changes weights. context.tape null: inference. context.layout says how the T packed tokens
// make up texts and must live until the backward pass has ended.
class Transformer {
 public:
  // Random weights, a pure function of the configuration and the seed (docs/numerics.md says which
  // distributions). ConfigError with all faults of the configuration. dtype: float32, or float64
  // for gradient checks.
  Transformer(const TransformerConfig& config, std::uint64_t seed, DType dtype = DType::kFloat32);
  // Names and shapes of the weights, without memory: for loaders, which check a file against them
  // and then call allocate().
  static Transformer shell(const TransformerConfig& config, DType dtype = DType::kFloat32);
  void allocate();  // all weights are zero afterwards
  ~Transformer();
  Transformer(Transformer&&) noexcept;
  Transformer& operator=(Transformer&&) noexcept;

  const TransformerConfig& config() const;
  nn::Module& module();  // parameters, names, flat buffers per block
  const nn::Module& module() const;

  // Hidden states [T, C] after the last block and its final norm. DataError for a text longer than
  // the position table (with both numbers) and for an empty one; ArgumentError for an id outside
  // the vocabulary, a token type outside its table.
  Var hidden(Context& context, std::span<const std::int32_t> ids,
             const TokenExtras& extras = {}) const;
  // One vector per text [B, C] from hidden states [T, C]: pooled, and through the head's dense part
  // where kNone and kSequence have one.
  Var pooled(Context& context, const Var& hidden) const;
  // The head's logits (HeadKind) of hidden states: [T, C] for kSequence, any rows [R, C] else.
  // ArgumentError for a model without head.
  Var head(Context& context, const Var& hidden) const;
  // head(hidden(ids)).
  Var logits(Context& context, std::span<const std::int32_t> ids,
             const TokenExtras& extras = {}) const;

 private:
  struct Impl;
  explicit Transformer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace qkv::inline v0
