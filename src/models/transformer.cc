#include "models/transformer.h"

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/memory.h"
#include "nn/block.h"
#include "nn/linear.h"
#include "nn/norm.h"
#include "ops/embedding.h"
#include "tensor/layout_check.h"

namespace qkv::inline v0 {
namespace {

// Standard deviation of freshly made embeddings (docs/numerics.md).
constexpr double kEmbeddingDeviation = 0.02;

std::string joined(const std::vector<std::string>& faults) {
  std::string all;
  for (const std::string& fault : faults) all += (all.empty() ? "" : "; ") + fault;
  return all;
}

void report(const Context& context, const char* name, const Var& value) {
  if (context.capture != nullptr) context.capture->activation(name, value.value());
}

// One row per sequence, for what comes after the pooling: keeps the samples' dropout keys.
std::shared_ptr<const RaggedLayout> rows_layout(const RaggedLayout& layout) {
  const std::vector<std::int64_t> ones(static_cast<std::size_t>(layout.batch()), 1);
  auto rows = std::make_shared<RaggedLayout>(RaggedLayout::from_lengths(ones));
  rows->samples = layout.samples;
  return rows;
}

// Puts a bias of the scores into the context while it lives.
class BiasScope {
 public:
  BiasScope(Context& context, Var bias) : context_(context) {
    context_.attention_bias = std::move(bias);
  }
  ~BiasScope() { context_.attention_bias = Var(); }
  BiasScope(const BiasScope&) = delete;
  BiasScope& operator=(const BiasScope&) = delete;

 private:
  Context& context_;
};

bool scores_vocabulary(HeadKind kind) {
  return kind == HeadKind::kMaskedLm || kind == HeadKind::kLm;
}

// Where the head's parts live: what a user knows as pooler and classifier has those names.
struct HeadNames {
  const char* dense;
  const char* norm;
  const char* out;
};
HeadNames head_names(HeadKind kind) {
  if (kind == HeadKind::kNone || kind == HeadKind::kSequence)
    return {"pooler", "pooler_norm", "classifier"};
  return {"head.dense", "head.norm", scores_vocabulary(kind) ? "head.out" : "classifier"};
}

}  // namespace

struct Transformer::Impl {
  Impl(const TransformerConfig& config, DType dtype);
  void build_embeddings(const nn::Builder& root);
  void build_head(const nn::Builder& root);

  void check_input(const Context& context, std::span<const std::int32_t> ids) const;
  Var embed(Context& context, std::span<const std::int32_t> ids, const TokenExtras& extras) const;
  void add_types(Context& context, nn::ResidualStream& sum, std::size_t tokens,
                 const TokenExtras& extras) const;
  Var distance_bias(Context& context) const;
  Var dense(Context& context, const Var& x) const;
  Var out(Context& context, const Var& x) const;

  TransformerConfig config;
  nn::Module module;
  Var token_table, position_table, type_table;  // sinusoidal positions are no parameters
  Var distance_table;                           // [buckets, H]
  nn::Norm embedding_norm, final_norm;
  std::vector<nn::Block> blocks;
  nn::Linear head_dense, head_out;
  nn::Norm head_norm;
  Var out_bias;  // of a tied head
};

Transformer::Impl::Impl(const TransformerConfig& c, DType dtype) : config(c), module(dtype) {
  const std::vector<std::string> faults = config.faults();
  require<ConfigError>(faults.empty(), "model", "{}", joined(faults));
  const nn::Builder root(module, "");
  build_embeddings(root);
  const nn::Builder stack = root.child(config.stack_name());
  for (std::int64_t i = 0; i < config.num_layers; ++i) {
    module.begin_group(config.layer_name(i));
    blocks.emplace_back(stack, "layers." + std::to_string(i), config.block(i));
  }
  module.begin_group("head");
  if (config.final_norm) final_norm = nn::Norm(stack, "norm", config.d_model, config.norm);
  build_head(root);
}

void Transformer::Impl::build_embeddings(const nn::Builder& root) {
  const nn::Builder embeddings = root.child("embeddings");
  const nn::Init table = nn::Init::normal(kEmbeddingDeviation);
  const auto add = [&](const char* name, std::int64_t rows) {
    return embeddings.add(name, {rows, config.d_model}, table, /*decay=*/false);
  };
  module.begin_group("embeddings");
  token_table = add("token.weight", config.vocab_size);
  if (config.positions == PositionKind::kLearned)
    position_table = add("position.weight", config.max_positions);
  if (config.type_vocab > 0) type_table = add("type.weight", config.type_vocab);
  if (config.relative_buckets > 0) {
    distance_table = embeddings.add("distance.weight", {config.relative_buckets, config.num_heads},
                                    table, /*decay=*/false);
  }
  if (config.embedding_norm)
    embedding_norm = nn::Norm(embeddings, "norm", config.d_model, config.norm);
}

void Transformer::Impl::build_head(const nn::Builder& root) {
  const HeadConfig& head = config.head;
  const HeadNames names = head_names(head.kind);
  const std::int64_t width = config.d_model;
  const nn::Init init = nn::Init::fan_in(width);
  if (head.dense) head_dense = nn::Linear(root, names.dense, {width, width, head.dense_bias, init});
  if (head.norm) head_norm = nn::Norm(root, names.norm, width, config.norm);
  if (head.kind == HeadKind::kNone) return;
  std::int64_t outputs = head.num_labels();
  if (scores_vocabulary(head.kind)) outputs = config.vocab_size;
  if (head.kind == HeadKind::kAnswer) outputs = 2;
  if (!head.tied) {
    head_out = nn::Linear(root, names.out, {width, outputs, head.bias, init});
  } else if (head.bias) {
    out_bias = root.child(names.out).add("bias", {outputs}, nn::Init::zeros(), /*decay=*/false);
  }
}

void Transformer::Impl::check_input(const Context& context,
                                    std::span<const std::int32_t> ids) const {
  require<ArgumentError>(context.layout != nullptr, config.stack_name(),
                         "expected a context with a ragged layout, got none; set Context::layout");
  const RaggedLayout& layout = *context.layout;
  check_layout(layout, config.stack_name());
  require<ShapeError>(layout.tokens() == static_cast<std::int64_t>(ids.size()), config.stack_name(),
                      "expected {} token ids, as the layout says, got {}", layout.tokens(),
                      ids.size());
  require<ShapeError>(layout.batch() > 0, config.stack_name(),
                      "expected at least one text, got an empty batch");
  const std::optional<std::int64_t> limit = config.position_limit();
  for (std::int64_t b = 0; b < layout.batch(); ++b) {
    require<DataError>(layout.length(b) > 0, config.stack_name(),
                       "expected at least one token in each text, got none in text {} of the batch",
                       b);
    if (!limit) continue;
    const std::int64_t needed = layout.positions[static_cast<std::size_t>(
                                    layout.starts[static_cast<std::size_t>(b) + 1] - 1)] +
                                1;
    require<DataError>(needed <= *limit, config.stack_name(),
                       "expected texts of at most {} tokens (max_positions), got one of {} (text "
                       "{} of the batch); truncate it or train a model "
                       "with more positions",
                       *limit, needed, b);
  }
}

void Transformer::Impl::add_types(Context& context, nn::ResidualStream& sum, std::size_t tokens,
                                  const TokenExtras& extras) const {
  if (!type_table.defined()) {
    for (const std::int32_t type : extras.types)
      require<ArgumentError>(type == 0, "embeddings",
                             "expected token types of 0 (the model has no table of them), got {}",
                             type);
    return;
  }
  require<ShapeError>(extras.types.empty() || extras.types.size() == tokens, "embeddings",
                      "expected {} token types, one for each token, got {}", tokens,
                      extras.types.size());
  const std::vector<std::int32_t> zeros(extras.types.empty() ? tokens : 0, 0);
  sum.add(context,
          autograd::embedding(context, extras.types.empty() ? zeros : extras.types, type_table, 1,
                              "token type embedding"),
          {});
}

Var Transformer::Impl::embed(Context& context, std::span<const std::int32_t> ids,
                             const TokenExtras& extras) const {
  const ModuleScope scope(context, "embeddings");
  nn::ResidualStream sum(
      autograd::embedding(context, ids, token_table, config.embedding_scale, "token embedding"));
  if (position_table.defined()) {
    std::vector<std::int32_t> rows(context.layout->positions);
    for (std::int32_t& row : rows) row += static_cast<std::int32_t>(config.position_offset);
    sum.add(context, autograd::embedding(context, rows, position_table, 1, "position embedding"),
            {});
  }
  add_types(context, sum, ids.size(), extras);
  Var x = sum.normed(context, embedding_norm);
  x = autograd::dropout(context, x, nn::dropout_options(context, config.embedding_dropout, 0));
  report(context, "embeddings", x);
  return x;
}

// Of the longest text; shorter ones take its corner.
Var Transformer::Impl::distance_bias(Context& context) const {
  if (!distance_table.defined()) return {};
  return autograd::distance_bias(context, distance_table, context.layout->max_length(),
                                 config.relative_distance);
}

// norm(activation(dense(x))), each part where there is one.
Var Transformer::Impl::dense(Context& context, const Var& x) const {
  const ModuleScope scope(context, head_names(config.head.kind).dense);
  Var y = config.head.dense ? head_dense(context, x, config.head.activation) : x;
  return head_norm(context, y);
}

Var Transformer::Impl::out(Context& context, const Var& x) const {
  Var logits =
      config.head.tied ? autograd::linear(context, x, token_table, out_bias) : head_out(context, x);
  if (config.head.softcap) logits = autograd::softcap(context, logits, *config.head.softcap);
  return logits;
}

Transformer::Transformer(const TransformerConfig& config, std::uint64_t seed, DType dtype)
    : impl_(std::make_unique<Impl>(config, dtype)) {
  allocate();
  impl_->module.initialise(seed);
}
Transformer::Transformer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Transformer Transformer::shell(const TransformerConfig& config, DType dtype) {
  return Transformer(std::make_unique<Impl>(config, dtype));
}
Transformer::~Transformer() = default;
Transformer::Transformer(Transformer&&) noexcept = default;
Transformer& Transformer::operator=(Transformer&&) noexcept = default;

void Transformer::allocate() {
  impl_->module.finish();
  if (impl_->config.positions == PositionKind::kSinusoidal) {
    const MemoryScope memory(MemoryKind::kWeights);
    impl_->position_table = Var(ops::sinusoidal_table(
        impl_->config.max_positions, impl_->config.d_model, impl_->module.dtype()));
  }
}

const TransformerConfig& Transformer::config() const { return impl_->config; }
nn::Module& Transformer::module() { return impl_->module; }
const nn::Module& Transformer::module() const { return impl_->module; }

Var Transformer::hidden(Context& context, std::span<const std::int32_t> ids,
                        const TokenExtras& extras) const {
  const MemoryScope memory(MemoryKind::kActivations);
  impl_->check_input(context, ids);
  nn::ResidualStream stream(impl_->embed(context, ids, extras));
  const char* name = impl_->config.stack_name();
  const ModuleScope scope(context, name);
  const BiasScope bias(context, impl_->distance_bias(context));
  for (const nn::Block& block : impl_->blocks) block(context, stream);
  Var y = stream.normed(context, impl_->final_norm);
  report(context, name, y);
  return y;
}

Var Transformer::pooled(Context& context, const Var& hidden) const {
  const MemoryScope memory(MemoryKind::kActivations);
  const HeadConfig& head = impl_->config.head;
  Var x = autograd::pool(context, hidden, head.pooling);
  if (head.kind == HeadKind::kNone || head.kind == HeadKind::kSequence)
    x = impl_->dense(context, x);
  report(context, "pooled", x);
  return x;
}

Var Transformer::head(Context& context, const Var& hidden) const {
  const MemoryScope memory(MemoryKind::kActivations);
  const HeadConfig& head = impl_->config.head;
  require<ArgumentError>(head.kind != HeadKind::kNone, "model",
                         "expected a model with a head, got a bare {}", impl_->config.stack_name());
  const bool sequence = head.kind == HeadKind::kSequence;
  Var x = sequence ? pooled(context, hidden) : impl_->dense(context, hidden);
  const ModuleScope scope(context, head_names(head.kind).out);
  if (context.training && head.dropout > 0) {
    const auto rows = sequence ? rows_layout(*context.layout) : nullptr;
    const RaggedLayout* layout = sequence ? rows.get() : context.layout;
    x = autograd::dropout(context, x, {head.dropout, context.random_key(0), layout}, rows);
  }
  Var logits = impl_->out(context, x);
  report(context, "logits", logits);
  return logits;
}

Var Transformer::logits(Context& context, std::span<const std::int32_t> ids,
                        const TokenExtras& extras) const {
  return head(context, hidden(context, ids, extras));
}

}  // namespace qkv::inline v0
