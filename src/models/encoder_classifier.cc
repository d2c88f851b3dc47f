#include "models/encoder_classifier.h"

#include <cmath>
#include <utility>

#include "base/check.h"
#include "models/encoder_impl.h"

namespace qkv::inline v0 {

TransformerConfig transformer_config(const EncoderConfig& config) {
  std::string all;
  for (const std::string& fault : config.faults()) all += (all.empty() ? "" : "; ") + fault;
  require<ConfigError>(all.empty(), "model", "{}", all);
  TransformerConfig t;
  t.model_type = "qkv";
  t.vocab_size = config.vocab_size;
  t.d_model = config.d_model;
  t.num_layers = config.num_layers;
  t.num_heads = config.num_heads;
  t.num_kv_heads = config.kv_heads();
  t.head_size = config.head_size();
  t.d_ff = config.d_ff;
  t.max_positions = config.max_positions;
  t.positions = config.positions;
  if (config.positions == PositionKind::kSinusoidal)
    t.embedding_scale = std::sqrt(static_cast<double>(config.d_model));
  t.embedding_norm = config.embedding_norm;
  t.rope.base = config.rope_base;
  t.norm.choice = config.norm;
  t.norm.eps = config.norm_eps;
  t.placement = config.norm_placement;
  t.final_norm = config.norm_placement != NormPlacement::kPost;
  if (config.attention == AttentionKind::kWindow) {
    t.windows.assign(static_cast<std::size_t>(config.num_layers), config.window);
  } else {
    t.attention = config.attention;
  }
  t.qkv_bias = t.out_bias = t.feed_forward_bias = config.bias;
  t.activation = config.activation;
  t.attention_dropout = config.attention_dropout;
  t.hidden_dropout = config.hidden_dropout;
  t.activation_dropout = config.activation_dropout;
  t.embedding_dropout = config.embedding_dropout;
  t.head.kind = HeadKind::kSequence;
  t.head.pooling = config.pooling;
  t.head.dense = config.pooler;
  t.head.activation = ops::Activation::kTanh;
  t.head.dropout = config.hidden_dropout;
  t.head.labels = config.labels;
  return t;
}

EncoderClassifier::EncoderClassifier(const EncoderConfig& config, std::uint64_t seed, DType dtype)
    : impl_(new Impl{config, Transformer(transformer_config(config), seed, dtype)}) {}
EncoderClassifier::EncoderClassifier(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
EncoderClassifier::~EncoderClassifier() = default;
EncoderClassifier::EncoderClassifier(EncoderClassifier&&) noexcept = default;
EncoderClassifier& EncoderClassifier::operator=(EncoderClassifier&&) noexcept = default;

const EncoderConfig& EncoderClassifier::config() const { return impl_->config; }
nn::Module& EncoderClassifier::module() { return impl_->transformer.module(); }
const nn::Module& EncoderClassifier::module() const {
  return std::as_const(impl_->transformer).module();
}

Var EncoderClassifier::forward(Context& context, std::span<const std::int32_t> ids) const {
  return impl_->transformer.logits(context, ids);
}
Var EncoderClassifier::encode(Context& context, std::span<const std::int32_t> ids) const {
  return impl_->transformer.hidden(context, ids);
}
Var EncoderClassifier::pooled(Context& context, std::span<const std::int32_t> ids) const {
  return impl_->transformer.pooled(context, impl_->transformer.hidden(context, ids));
}

}  // namespace qkv::inline v0
