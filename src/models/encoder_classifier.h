// Encoder with a classification head: embeddings, blocks, pooling, linear. BERT-like or
// RoPE/RMSNorm/SwiGLU by configuration.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "autograd/context.h"
#include "models/config.h"
#include "nn/module.h"

namespace qkv::inline v0 {

struct LoadOptions;

// What fine-tuning gives a published model (docs/models.md).
struct FineTuneOptions {
  std::vector<std::string> labels;
  // A linear layer over tokens that are pooled like this; nothing: the head that the family has in
  // transformers.
  std::optional<ops::Pooling> pooling;
  bool fresh_classifier = false;  // the last layer starts anew, whatever the file holds of one
  // Nothing: what config.json says.
  std::optional<double> attention_dropout, hidden_dropout, activation_dropout, embedding_dropout;
  std::uint64_t seed = 0;  // of the weights that the file does not hold
};

// What config.json alone says of a published encoder.
struct PublishedEncoder {
  std::int64_t max_tokens = 0;      // of a text
  std::vector<std::string> labels;  // of its sequence classifier; empty: it has none
};

// Forward passes of one model may run in several threads at once, each with its own Context, while
// nobody changes weights.
class EncoderClassifier {
 public:
  // Random weights, a pure function of the configuration and the seed (docs/numerics.md says which
  // distributions). ConfigError with all faults of the configuration. dtype: float32, or float64
  // for gradient checks.
  EncoderClassifier(const EncoderConfig& config, std::uint64_t seed, DType dtype = DType::kFloat32);
  ~EncoderClassifier();
  EncoderClassifier(EncoderClassifier&&) noexcept;
  EncoderClassifier& operator=(EncoderClassifier&&) noexcept;

  const EncoderConfig& config() const;
  nn::Module& module();  // parameters, names, flat buffers per block
  const nn::Module& module() const;

  // Logits [B, V] of packed token ids (T of them, laid out by context.layout). context.tape null:
  // inference. DataError for a text longer than the position table (with both numbers) and for an
  // empty one; ArgumentError for an id outside the vocabulary. context.layout must live until the
  // backward pass has ended.
  Var forward(Context& context, std::span<const std::int32_t> ids) const;
  // Hidden states [T, C] after the last block (and final norm).
  Var encode(Context& context, std::span<const std::int32_t> ids) const;
  // One vector per text [B, C]: the head's input without dropout.
  Var pooled(Context& context, std::span<const std::int32_t> ids) const;

  // config.json and model.safetensors, Hugging Face layout, each written whole or not at all.
  // Loading gives back the same bits, saving again the same bytes. IoError; ModelError naming the
  // file, key or tensor for anything that does not fit, missing or surplus weights and non-finite
  // values among it.
  void save(const std::filesystem::path& folder) const;
  static EncoderClassifier load(const std::filesystem::path& folder);

  // A published encoder with a head for these labels, new but for what fits in the file. save()
  // writes it under its family's names. Errors as those of load_checkpoint().
  static EncoderClassifier fine_tune(const std::filesystem::path& folder,
                                     const FineTuneOptions& options);
  // Whether config.json names a published encoder rather than a classifier of this class' own
  // forms; then fine_tune() takes it, and load() if it has a sequence classifier's head.
  static bool is_published(const std::filesystem::path& folder);
  static PublishedEncoder published(const std::filesystem::path& folder);  // if is_published()

 private:
  struct Impl;
  static EncoderClassifier load_published(const std::filesystem::path& folder,
                                          const LoadOptions& options);
  explicit EncoderClassifier(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace qkv::inline v0
