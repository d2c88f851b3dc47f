// Encoder with a classification head: embeddings, blocks, pooling, linear. BERT-like or RoPE/RMSNorm/SwiGLU by configuration.
#pragma once

#include <filesystem>
#include <memory>

#include "autograd/context.h"
#include "models/config.h"
#include "nn/module.h"
#include "text/dataset.h"

namespace qkv::inline v0 {

class EncoderClassifier {
 public:
  // Random weights, a pure function of the configuration and the seed (docs/numerics.md says which distributions).
  EncoderClassifier(const EncoderConfig& config, std::uint64_t seed);
  ~EncoderClassifier();
  EncoderClassifier(EncoderClassifier&&) noexcept;
  EncoderClassifier& operator=(EncoderClassifier&&) noexcept;

  const EncoderConfig& config() const;
  nn::Module& module();              // parameters, names, flat buffers per block
  const nn::Module& module() const;

  // Logits [B, V] of packed token ids (T of them, laid out by context.layout). context.tape null: inference.
  Var forward(Context& context, std::span<const std::int32_t> ids) const;
  // Hidden states [T, C] after the last block (and final norm).
  Var encode(Context& context, std::span<const std::int32_t> ids) const;

  // config.json and model.safetensors, Hugging Face layout. Loading gives back the same bits.
  void save(const std::filesystem::path& folder) const;
  static EncoderClassifier load(const std::filesystem::path& folder);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace qkv::inline v0
