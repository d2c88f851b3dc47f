#include "models/encoder_classifier.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "base/check.h"
#include "base/memory.h"
#include "models/encoder_impl.h"
#include "nn/norm.h"
#include "ops/embedding.h"
#include "tensor/layout_check.h"

namespace qkv::inline v0 {
namespace {

nn::BlockConfig block_config(const EncoderConfig& c) {
  nn::BlockConfig block;
  block.attention = {c.d_model, c.num_heads,  c.kv_heads(),        c.attention,
                     c.window,  std::nullopt, c.attention_dropout, c.bias};
  if (c.positions == PositionKind::kRope)
    block.attention.rope = ops::RopeOptions{c.rope_base, ops::RopePairing::kHalfSplit};
  block.feed_forward = {c.d_model, c.d_ff, c.activation, c.activation_dropout, c.bias};
  block.norm = {c.norm, c.norm_eps};
  block.placement = c.norm_placement;
  block.hidden_dropout = c.hidden_dropout;
  return block;
}

// One row per sequence, for what comes after the pooling: keeps the samples' dropout keys.
RaggedLayout rows_layout(const RaggedLayout& layout) {
  const std::vector<std::int64_t> ones(static_cast<std::size_t>(layout.batch()), 1);
  RaggedLayout rows = RaggedLayout::from_lengths(ones);
  rows.samples = layout.samples;
  return rows;
}

std::string joined(const std::vector<std::string>& faults) {
  std::string all;
  for (const std::string& fault : faults) all += (all.empty() ? "" : "; ") + fault;
  return all;
}

void report(const Context& context, const char* name, const Var& value) {
  if (context.capture != nullptr) context.capture->activation(name, value.value());
}

}  // namespace

EncoderClassifier::Impl::Impl(const EncoderConfig& c, DType dtype) : config(c), module(dtype) {
  const std::vector<std::string> faults = config.faults();
  require<ConfigError>(faults.empty(), "model", "{}", joined(faults));
  const nn::NormConfig norm{config.norm, config.norm_eps};
  const nn::Builder root(module, "");
  const nn::Builder embeddings = root.child("embeddings");
  module.begin_group("embeddings");
  const bool sinusoidal = config.positions == PositionKind::kSinusoidal;
  token_scale = sinusoidal ? std::sqrt(static_cast<double>(config.d_model)) : 1.0;
  const nn::Init table = nn::Init::normal(kEmbeddingDeviation);
  token_table =
      embeddings.add("token.weight", {config.vocab_size, config.d_model}, table, /*decay=*/false);
  if (config.positions == PositionKind::kLearned) {
    position_table = embeddings.add("position.weight", {config.max_positions, config.d_model},
                                    table, /*decay=*/false);
  }
  if (config.embedding_norm) embedding_norm = nn::Norm(embeddings, "norm", config.d_model, norm);
  const nn::Builder encoder = root.child("encoder");
  for (std::int64_t i = 0; i < config.num_layers; ++i) {
    const std::string name = "layers." + std::to_string(i);
    module.begin_group("encoder." + name);
    blocks.emplace_back(encoder, name, block_config(config));
  }
  module.begin_group("head");
  if (config.norm_placement != NormPlacement::kPost)
    final_norm = nn::Norm(encoder, "norm", config.d_model, norm);
  const std::int64_t width = config.d_model;
  if (config.pooler)
    pooler = nn::Linear(root, "pooler", {width, width, true, nn::Init::fan_in(width)});
  classifier =
      nn::Linear(root, "classifier", {width, config.num_labels(), true, nn::Init::fan_in(width)});
}

void EncoderClassifier::Impl::allocate() {
  module.finish();
  if (config.positions == PositionKind::kSinusoidal) {
    const MemoryScope memory(MemoryKind::kWeights);
    position_table =
        Var(ops::sinusoidal_table(config.max_positions, config.d_model, module.dtype()));
  }
}

void EncoderClassifier::Impl::check_input(const Context& context,
                                          std::span<const std::int32_t> ids) const {
  require<ArgumentError>(context.layout != nullptr, "encoder",
                         "expected a context with a ragged layout, got none; set Context::layout");
  const RaggedLayout& layout = *context.layout;
  check_layout(layout, "encoder");
  require<ShapeError>(layout.tokens() == static_cast<std::int64_t>(ids.size()), "encoder",
                      "expected {} token ids, as the layout says, got {}", layout.tokens(),
                      ids.size());
  require<ShapeError>(layout.batch() > 0, "encoder",
                      "expected at least one text, got an empty batch");
  const std::optional<std::int64_t> limit = config.position_limit();
  for (std::int64_t b = 0; b < layout.batch(); ++b) {
    require<DataError>(layout.length(b) > 0, "encoder",
                       "expected at least one token in each text, got none in text {} of the batch",
                       b);
    if (!limit) continue;
    const std::int64_t needed = layout.positions[static_cast<std::size_t>(
                                    layout.starts[static_cast<std::size_t>(b) + 1] - 1)] +
                                1;
    require<DataError>(needed <= *limit, "encoder",
                       "expected texts of at most {} tokens (max_positions), got one of {} (text "
                       "{} of the batch); truncate it or train a model "
                       "with more positions",
                       *limit, needed, b);
  }
}

Var EncoderClassifier::Impl::embed(Context& context, std::span<const std::int32_t> ids) const {
  const ModuleScope scope(context, "embeddings");
  nn::ResidualStream sum(
      autograd::embedding(context, ids, token_table, token_scale, "token embedding"));
  if (position_table.defined()) {
    sum.add(context,
            autograd::embedding(context, context.layout->positions, position_table, 1,
                                "position embedding"),
            {});
  }
  Var x = sum.normed(context, embedding_norm);
  x = autograd::dropout(context, x, nn::dropout_options(context, config.embedding_dropout, 0));
  report(context, "embeddings", x);
  return x;
}

Var EncoderClassifier::Impl::encode(Context& context, std::span<const std::int32_t> ids) const {
  check_input(context, ids);
  nn::ResidualStream stream(embed(context, ids));
  const ModuleScope scope(context, "encoder");
  for (const nn::Block& block : blocks) block(context, stream);
  Var y = stream.normed(context, final_norm);
  report(context, "encoder", y);
  return y;
}

Var EncoderClassifier::Impl::pooled(Context& context, std::span<const std::int32_t> ids) const {
  const Var hidden = encode(context, ids);
  Var x = autograd::pool(context, hidden, config.pooling);
  if (config.pooler) {
    const ModuleScope scope(context, "pooler");
    x = pooler(context, x, ops::Activation::kTanh);
  }
  report(context, "pooled", x);
  return x;
}

Var EncoderClassifier::Impl::forward(Context& context, std::span<const std::int32_t> ids) const {
  Var x = pooled(context, ids);
  const ModuleScope scope(context, "classifier");
  if (context.training && config.hidden_dropout > 0) {
    const auto rows = std::make_shared<const RaggedLayout>(rows_layout(*context.layout));
    x = autograd::dropout(context, x, {config.hidden_dropout, context.random_key(0), rows.get()},
                          rows);
  }
  Var logits = classifier(context, x);
  report(context, "logits", logits);
  return logits;
}

EncoderClassifier::EncoderClassifier(const EncoderConfig& config, std::uint64_t seed, DType dtype)
    : impl_(std::make_unique<Impl>(config, dtype)) {
  impl_->allocate();
  impl_->module.initialise(seed);
}
EncoderClassifier::EncoderClassifier(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
EncoderClassifier::~EncoderClassifier() = default;
EncoderClassifier::EncoderClassifier(EncoderClassifier&&) noexcept = default;
EncoderClassifier& EncoderClassifier::operator=(EncoderClassifier&&) noexcept = default;

const EncoderConfig& EncoderClassifier::config() const { return impl_->config; }
nn::Module& EncoderClassifier::module() { return impl_->module; }
const nn::Module& EncoderClassifier::module() const { return impl_->module; }

Var EncoderClassifier::forward(Context& context, std::span<const std::int32_t> ids) const {
  const MemoryScope memory(MemoryKind::kActivations);
  return impl_->forward(context, ids);
}
Var EncoderClassifier::encode(Context& context, std::span<const std::int32_t> ids) const {
  const MemoryScope memory(MemoryKind::kActivations);
  return impl_->encode(context, ids);
}
Var EncoderClassifier::pooled(Context& context, std::span<const std::int32_t> ids) const {
  const MemoryScope memory(MemoryKind::kActivations);
  return impl_->pooled(context, ids);
}

}  // namespace qkv::inline v0
