// MPNet (Song et al. 2020): BERT's shape with a bias by bucketed distance in every attention layer.
#include <array>

#include "models/families/family.h"

namespace qkv::inline v0 {
namespace {

using Part = WeightPart;

void read_mpnet(const JsonReader& r, TransformerConfig& c) {
  c.vocab_size = r.integer("vocab_size");
  read_heads(r, "hidden_size", "num_attention_heads", c);
  c.num_layers = r.integer("num_hidden_layers");
  c.d_ff = r.integer("intermediate_size");
  c.max_positions = r.integer("max_position_embeddings");
  c.activation = read_activation(r, "hidden_act");
  c.positions = PositionKind::kLearned;
  c.position_offset = 2;  // whatever pad_token_id says
  c.relative_buckets = r.integer_or("relative_attention_num_buckets", 32);
  require<ModelError>(c.relative_buckets == 32, "config.json",
                      "relative_attention_num_buckets: expected 32, the only number that the "
                      "original computes, got {}",
                      c.relative_buckets);
  c.norm.eps = r.number_or("layer_norm_eps", 1e-12);
  c.placement = NormPlacement::kPost;
  c.embedding_norm = true;
  c.final_norm = false;
  c.hidden_dropout = c.embedding_dropout = r.number_or("hidden_dropout_prob", 0.1);
  c.attention_dropout = r.number_or("attention_probs_dropout_prob", 0.1);
  switch (c.head.kind) {
    case HeadKind::kMaskedLm:
      c.head.dense = c.head.norm = true;
      c.head.activation = ops::Activation::kGelu;
      c.head.tied = r.boolean_or("tie_word_embeddings", true);
      break;
    case HeadKind::kNone:
    case HeadKind::kSequence:
      c.head.dense = true;
      c.head.activation = ops::Activation::kTanh;
      c.head.dropout = c.hidden_dropout;
      break;
    case HeadKind::kTokens:
      c.head.dropout = c.hidden_dropout;
      break;
    default:
      break;
  }
}

constexpr std::array kTrunk{
    WeightRule{"embeddings.token", "^embeddings.word_embeddings"},
    WeightRule{"embeddings.position", "^embeddings.position_embeddings"},
    WeightRule{"embeddings.norm", "^embeddings.LayerNorm"},
    WeightRule{"embeddings.distance", "^encoder.relative_attention_bias"},
    WeightRule{"layers.{}.attention.qkv", "^encoder.layer.{}.attention.attn.q", Part::kQuery},
    WeightRule{"layers.{}.attention.qkv", "^encoder.layer.{}.attention.attn.k", Part::kKey},
    WeightRule{"layers.{}.attention.qkv", "^encoder.layer.{}.attention.attn.v", Part::kValue},
    WeightRule{"layers.{}.attention.out", "^encoder.layer.{}.attention.attn.o"},
    WeightRule{"layers.{}.attention_norm", "^encoder.layer.{}.attention.LayerNorm"},
    WeightRule{"layers.{}.feed_forward.up", "^encoder.layer.{}.intermediate.dense"},
    WeightRule{"layers.{}.feed_forward.down", "^encoder.layer.{}.output.dense"},
    WeightRule{"layers.{}.feed_forward_norm", "^encoder.layer.{}.output.LayerNorm"},
};
constexpr auto kRules = join(kTrunk, kRobertaHead);
constexpr std::array<std::string_view, 1> kIgnored{"*embeddings.position_ids"};

constexpr std::array kArchitectures{
    Architecture{"MPNetModel", HeadKind::kNone},
    Architecture{"MPNetForMaskedLM", HeadKind::kMaskedLm},
    Architecture{"MPNetForSequenceClassification", HeadKind::kSequence},
    Architecture{"MPNetForTokenClassification", HeadKind::kTokens},
    Architecture{"MPNetForQuestionAnswering", HeadKind::kAnswer},
};

}  // namespace

constexpr Family kMpnet{"mpnet", kArchitectures, read_mpnet, {"mpnet.", false, kRules, kIgnored}};

}  // namespace qkv::inline v0
