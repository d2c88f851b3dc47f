// DistilBERT (Sanh et al. 2019): BERT without token types and pooler.
#include <array>

#include "models/families/family.h"

namespace qkv::inline v0 {
namespace {

using Part = WeightPart;

void read_distilbert(const JsonReader& r, TransformerConfig& c) {
  c.vocab_size = r.integer("vocab_size");
  read_heads(r, "dim", "n_heads", c);
  c.num_layers = r.integer("n_layers");
  c.d_ff = r.integer("hidden_dim");
  c.max_positions = r.integer("max_position_embeddings");
  c.activation = read_activation(r, "activation");
  c.positions = PositionKind::kLearned;  // sinusoidal ones lie in the file all the same
  c.norm.eps = 1e-12;
  c.placement = NormPlacement::kPost;
  c.embedding_norm = true;
  c.final_norm = false;
  c.hidden_dropout = c.embedding_dropout = r.number_or("dropout", 0.1);
  c.attention_dropout = r.number_or("attention_dropout", 0.1);
  switch (c.head.kind) {
    case HeadKind::kMaskedLm:
      c.head.dense = c.head.norm = true;
      c.head.activation = c.activation;
      c.head.tied = r.boolean_or("tie_word_embeddings", true);
      break;
    case HeadKind::kSequence:
      c.head.dense = true;
      c.head.activation = ops::Activation::kRelu;
      c.head.dropout = r.number_or("seq_classif_dropout", 0.2);
      break;
    case HeadKind::kTokens:
      c.head.dropout = c.hidden_dropout;
      break;
    case HeadKind::kAnswer:
      c.head.dropout = r.number_or("qa_dropout", 0.1);
      break;
    default:
      break;
  }
}

constexpr std::array kRules{
    WeightRule{"embeddings.token", "^embeddings.word_embeddings"},
    WeightRule{"embeddings.position", "^embeddings.position_embeddings"},
    WeightRule{"embeddings.norm", "^embeddings.LayerNorm"},
    WeightRule{"layers.{}.attention.qkv", "^transformer.layer.{}.attention.q_lin", Part::kQuery},
    WeightRule{"layers.{}.attention.qkv", "^transformer.layer.{}.attention.k_lin", Part::kKey},
    WeightRule{"layers.{}.attention.qkv", "^transformer.layer.{}.attention.v_lin", Part::kValue},
    WeightRule{"layers.{}.attention.out", "^transformer.layer.{}.attention.out_lin"},
    WeightRule{"layers.{}.attention_norm", "^transformer.layer.{}.sa_layer_norm"},
    WeightRule{"layers.{}.feed_forward.up", "^transformer.layer.{}.ffn.lin1"},
    WeightRule{"layers.{}.feed_forward.down", "^transformer.layer.{}.ffn.lin2"},
    WeightRule{"layers.{}.feed_forward_norm", "^transformer.layer.{}.output_layer_norm"},
    WeightRule{"pooler", "pre_classifier"},
    WeightRule{"classifier", "qa_outputs", Part::kWhole, false, HeadKind::kAnswer},
    WeightRule{"classifier", "classifier"},
    WeightRule{"head.dense", "vocab_transform"},
    WeightRule{"head.norm", "vocab_layer_norm"},
    WeightRule{"head.out", "vocab_projector"},
};
constexpr std::array<std::string_view, 1> kIgnored{"*embeddings.position_ids"};

constexpr std::array kArchitectures{
    Architecture{"DistilBertModel", HeadKind::kNone},
    Architecture{"DistilBertForMaskedLM", HeadKind::kMaskedLm},
    Architecture{"DistilBertForSequenceClassification", HeadKind::kSequence},
    Architecture{"DistilBertForTokenClassification", HeadKind::kTokens},
    Architecture{"DistilBertForQuestionAnswering", HeadKind::kAnswer},
};

}  // namespace

constexpr Family kDistilBert{
    "distilbert", kArchitectures, read_distilbert, {"distilbert.", false, kRules, kIgnored}};

}  // namespace qkv::inline v0
