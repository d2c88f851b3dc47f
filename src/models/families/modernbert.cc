// ModernBERT (Warner et al. 2024): Pre-LN without biases, GeGLU, rotary positions, and windows in
// two of three layers.
#include <algorithm>
#include <array>

#include "models/families/family.h"

namespace qkv::inline v0 {
namespace {

using Part = WeightPart;

bool is_local(const JsonReader& r, std::int64_t layer) {
  if (r.absent("layer_types"))
    return layer % std::max<std::int64_t>(1, r.integer_or("global_attn_every_n_layers", 3)) != 0;
  const Json& types = r.at("layer_types");
  require<ModelError>(types.is_array() && static_cast<std::int64_t>(types.size()) > layer,
                      "config.json", "layer_types: expected one for each layer, got {}",
                      excerpt(types.dump()));
  const Json& type = types.at(static_cast<std::size_t>(layer));
  const bool local = type == Json("sliding_attention");
  require<ModelError>(local || type == Json("full_attention"), "config.json",
                      "layer_types: expected \"full_attention\" or \"sliding_attention\", got {}",
                      excerpt(type.dump()));
  return local;
}

void read_positions(const JsonReader& r, TransformerConfig& c) {
  c.max_positions = r.integer("max_position_embeddings");
  c.positions = PositionKind::kRope;
  const Json* all = rope_parameters(r);
  const auto of = [&](const char* kind, const char* older, double fallback) {
    const Json* parameters = all != nullptr ? all->find(kind) : nullptr;
    return read_rope(r, parameters, r.number_or(older, fallback));
  };
  c.rope = of("full_attention", "global_rope_theta", 160000);
  c.local_rope = of("sliding_attention", "local_rope_theta", 10000);
  const std::int64_t local = r.integer_or("local_attention", 128);
  require<ModelError>(local >= 2, "config.json", "local_attention: expected at least 2, got {}",
                      local);
  // Half of it on either side, and the token itself.
  require<ModelError>(c.num_layers >= 1 && c.num_layers <= 4096, "config.json",
                      "num_hidden_layers: expected 1 to 4096, got {}", c.num_layers);
  for (std::int64_t layer = 0; layer < c.num_layers; ++layer)
    c.windows.push_back(is_local(r, layer) ? local / 2 + 1 : 0);
}

void read_head(const JsonReader& r, TransformerConfig& c) {
  if (c.head.kind == HeadKind::kNone) return;
  c.head.dense = c.head.norm = true;
  c.head.dense_bias = r.boolean_or("classifier_bias", false);
  c.head.activation = r.absent("classifier_activation")
                          ? ops::Activation::kGelu
                          : read_activation(r, "classifier_activation");
  if (c.head.kind == HeadKind::kMaskedLm) {
    c.head.tied = r.boolean_or("tie_word_embeddings", true);
    c.head.bias = r.boolean_or("decoder_bias", true);
    return;
  }
  c.head.dropout = r.number_or("classifier_dropout", 0);
  const std::string pooling = r.text_or("classifier_pooling", "cls");
  require<ModelError>(pooling == "cls" || pooling == "mean", "config.json",
                      "classifier_pooling: expected \"cls\" or \"mean\", got \"{}\"",
                      excerpt(pooling));
  c.head.pooling = pooling == "cls" ? ops::Pooling::kFirst : ops::Pooling::kMean;
}

void read_modernbert(const JsonReader& r, TransformerConfig& c) {
  c.vocab_size = r.integer("vocab_size");
  read_heads(r, "hidden_size", "num_attention_heads", c);
  c.num_layers = r.integer("num_hidden_layers");
  c.d_ff = r.integer("intermediate_size");
  c.activation = read_gated_activation(r, "hidden_activation");
  read_positions(r, c);
  c.norm.eps = r.number_or("norm_eps", 1e-5);
  c.norm.bias = r.boolean_or("norm_bias", false);
  c.placement = NormPlacement::kPre;
  c.embedding_norm = true;
  c.first_attention_norm = false;
  c.qkv_bias = c.out_bias = r.boolean_or("attention_bias", false);
  c.feed_forward_bias = r.boolean_or("mlp_bias", false);
  c.attention_dropout = r.number_or("attention_dropout", 0);
  c.activation_dropout = r.number_or("mlp_dropout", 0);
  c.embedding_dropout = r.number_or("embedding_dropout", 0);
  read_head(r, c);
}

constexpr std::array kRules{
    WeightRule{"embeddings.token", "^embeddings.tok_embeddings"},
    WeightRule{"embeddings.norm", "^embeddings.norm"},
    WeightRule{"layers.{}.attention.qkv", "^layers.{}.attn.Wqkv"},
    WeightRule{"layers.{}.attention.out", "^layers.{}.attn.Wo"},
    WeightRule{"layers.{}.attention_norm", "^layers.{}.attn_norm"},
    WeightRule{"layers.{}.feed_forward.up", "^layers.{}.mlp.Wi"},
    WeightRule{"layers.{}.feed_forward.down", "^layers.{}.mlp.Wo"},
    WeightRule{"layers.{}.feed_forward_norm", "^layers.{}.mlp_norm"},
    WeightRule{"norm", "^final_norm"},
    WeightRule{"pooler", "head.dense"},
    WeightRule{"pooler_norm", "head.norm"},
    WeightRule{"head.dense", "head.dense"},
    WeightRule{"head.norm", "head.norm"},
    WeightRule{"head.out", "decoder"},
    WeightRule{"classifier", "classifier"},
};

constexpr std::array kArchitectures{
    Architecture{"ModernBertModel", HeadKind::kNone},
    Architecture{"ModernBertForMaskedLM", HeadKind::kMaskedLm},
    Architecture{"ModernBertForSequenceClassification", HeadKind::kSequence},
    Architecture{"ModernBertForTokenClassification", HeadKind::kTokens},
    Architecture{"ModernBertForQuestionAnswering", HeadKind::kAnswer},
};

}  // namespace

constexpr Family kModernBert{
    "modernbert", kArchitectures, read_modernbert, {"model.", false, kRules, {}}};

}  // namespace qkv::inline v0
