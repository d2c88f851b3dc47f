// Inside of EncoderClassifier, shared by its forward pass and its files.
#pragma once

#include <span>
#include <vector>

#include "models/encoder_classifier.h"
#include "nn/block.h"
#include "nn/linear.h"
#include "nn/norm.h"

namespace qkv::inline v0 {

// Standard deviation of freshly made embeddings (docs/numerics.md).
inline constexpr double kEmbeddingDeviation = 0.02;

struct EncoderClassifier::Impl {
  Impl(const EncoderConfig& config, DType dtype);  // names and shapes; no memory yet
  void allocate();                                 // weights are zero

  Var embed(Context& context, std::span<const std::int32_t> ids) const;
  Var encode(Context& context, std::span<const std::int32_t> ids) const;
  Var pooled(Context& context, std::span<const std::int32_t> ids) const;
  Var forward(Context& context, std::span<const std::int32_t> ids) const;
  void check_input(const Context& context, std::span<const std::int32_t> ids) const;

  EncoderConfig config;
  nn::Module module;
  Var token_table,
      position_table;  // [V, C], [max_positions, C]; sinusoidal tables are no parameters
  double token_scale = 1;
  nn::Norm embedding_norm, final_norm;
  std::vector<nn::Block> blocks;
  nn::Linear pooler, classifier;
};

}  // namespace qkv::inline v0
