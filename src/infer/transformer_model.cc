#include "infer/transformer_model.h"

#include <utility>
#include <vector>

#include "base/check.h"
#include "base/memory.h"
#include "nn/kv_cache.h"

namespace qkv::inline v0::infer {
namespace {

constexpr const char* kWhere = "language_model";

nn::KvCache make_cache(const TransformerConfig& config) {
  std::vector<nn::KvCache::Layer> layers;
  for (std::int64_t i = 0; i < config.num_layers; ++i)
    layers.push_back({config.num_kv_heads, config.head_size, config.window(i)});
  return nn::KvCache(std::move(layers));
}

class Session : public DecodingSession {
 public:
  Session(std::shared_ptr<const Transformer> model, const LanguageModel::Facts& facts)
      : model_(std::move(model)), facts_(facts), cache_(make_cache(model_->config())) {}

  std::int64_t open() override { return cache_.open(); }
  std::int64_t fork(std::int64_t stream) override { return cache_.fork(stream); }
  void close(std::int64_t stream) override { cache_.close(stream); }
  std::int64_t length(std::int64_t stream) const override { return cache_.length(stream); }

  Tensor append(std::span<const StreamTokens> parts, LogitsOf which) override {
    std::vector<std::int64_t> streams, lengths;
    std::vector<std::int32_t> ids;
    for (const StreamTokens& part : parts) {
      require<ArgumentError>(!part.ids.empty(), kWhere,
                             "expected at least one token for each stream, got none for {}",
                             part.stream);
      check_room(part);
      streams.push_back(part.stream);
      lengths.push_back(static_cast<std::int64_t>(part.ids.size()));
      ids.insert(ids.end(), part.ids.begin(), part.ids.end());
    }
    RaggedLayout layout = RaggedLayout::from_lengths(lengths);
    for (std::size_t b = 0; b < parts.size(); ++b) {
      const auto before = static_cast<std::int32_t>(cache_.length(streams[b]));
      for (std::int64_t t = layout.starts[b]; t < layout.starts[b + 1]; ++t)
        layout.positions[static_cast<std::size_t>(t)] += before;
    }
    cache_.begin(streams);
    Context context;
    context.layout = &layout;
    context.cache = &cache_;
    Var hidden = model_->hidden(context, ids);
    if (which == LogitsOf::kLastTokens) hidden = last_rows(hidden, layout);
    Tensor logits = model_->head(context, hidden).value();
    cache_.commit(lengths);
    return logits;
  }

 private:
  void check_room(const StreamTokens& part) const {
    if (!facts_.context) return;
    const std::int64_t length = cache_.length(part.stream),
                       more = static_cast<std::int64_t>(part.ids.size());
    require<DataError>(length + more <= *facts_.context, kWhere,
                       "expected streams of at most {} tokens (the model's context), got {} and {} "
                       "more",
                       *facts_.context, length, more);
  }

  static Var last_rows(const Var& hidden, const RaggedLayout& layout) {
    if (layout.tokens() == layout.batch()) return hidden;
    const MemoryScope memory(MemoryKind::kActivations);
    const Tensor& all = hidden.value();
    const Tensor rows = Tensor::empty({layout.batch(), all.dim(1)}, all.dtype());
    for (std::int64_t b = 0; b < layout.batch(); ++b)
      rows.narrow(0, b, 1).copy_from(
          all.narrow(0, layout.starts[static_cast<std::size_t>(b) + 1] - 1, 1));
    return Var(rows);
  }

  std::shared_ptr<const Transformer> model_;
  LanguageModel::Facts facts_;
  nn::KvCache cache_;
};

class Model : public LanguageModel {
 public:
  Model(std::shared_ptr<const Transformer> model, Facts facts)
      : model_(std::move(model)), facts_(std::move(facts)) {}
  const Facts& facts() const override { return facts_; }
  std::unique_ptr<DecodingSession> start() const override {
    return std::make_unique<Session>(model_, facts_);
  }

 private:
  std::shared_ptr<const Transformer> model_;
  Facts facts_;
};

}  // namespace

std::unique_ptr<LanguageModel> make_language_model(std::shared_ptr<const Transformer> model,
                                                   LanguageModel::Facts facts) {
  const TransformerConfig& config = model->config();
  require<ArgumentError>(config.causal && config.head.kind == HeadKind::kLm, kWhere,
                         "expected a decoder with a language model's head, got {} with head {}",
                         config.model_type.empty() ? config.stack_name() : config.model_type,
                         head_kind_name(config.head.kind));
  if (facts.vocabulary == 0) facts.vocabulary = config.vocab_size;
  require<ArgumentError>(facts.vocabulary <= config.vocab_size, kWhere,
                         "expected a vocabulary of at most {} tokens (the model's), got {}",
                         config.vocab_size, facts.vocabulary);
  if (!facts.context) facts.context = config.max_tokens();
  return std::make_unique<Model>(std::move(model), std::move(facts));
}

}  // namespace qkv::inline v0::infer
