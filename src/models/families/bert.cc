// BERT (Devlin et al. 2019), and RoBERTa and XLM-R (Liu et al. 2019, Conneau et al. 2020), which
// differ in their positions, their names and their heads.
#include <array>

#include "models/families/family.h"

namespace qkv::inline v0 {
namespace {

using Part = WeightPart;

// What the three have in common.
void read_common(const JsonReader& r, TransformerConfig& c) {
  c.vocab_size = r.integer("vocab_size");
  read_heads(r, "hidden_size", "num_attention_heads", c);
  c.num_layers = r.integer("num_hidden_layers");
  c.d_ff = r.integer("intermediate_size");
  c.max_positions = r.integer("max_position_embeddings");
  c.activation = read_activation(r, "hidden_act");
  c.type_vocab = r.integer("type_vocab_size");
  expect_text(r, "position_embedding_type", "absolute");
  expect_boolean(r, "is_decoder", false);
  expect_boolean(r, "add_cross_attention", false);
  c.positions = PositionKind::kLearned;
  c.norm.eps = r.number_or("layer_norm_eps", 1e-12);
  c.placement = NormPlacement::kPost;
  c.embedding_norm = true;
  c.final_norm = false;
  c.hidden_dropout = c.embedding_dropout = r.number_or("hidden_dropout_prob", 0.1);
  c.attention_dropout = r.number_or("attention_probs_dropout_prob", 0.1);
  c.head.dropout = r.number_or("classifier_dropout", c.hidden_dropout);
  switch (c.head.kind) {
    case HeadKind::kMaskedLm:
      c.head.dense = c.head.norm = true;
      c.head.activation = ops::Activation::kGelu;
      c.head.tied = r.boolean_or("tie_word_embeddings", true);
      c.head.dropout = 0;
      break;
    case HeadKind::kNone:
    case HeadKind::kSequence:  // the pooler, or a layer of the head that looks the same
      c.head.dense = true;
      c.head.activation = ops::Activation::kTanh;
      break;
    default:
      break;
  }
}

void read_bert(const JsonReader& r, TransformerConfig& c) {
  read_common(r, c);
  if (c.head.kind == HeadKind::kMaskedLm) c.head.activation = c.activation;
  if (c.head.kind == HeadKind::kAnswer) c.head.dropout = 0;
}

// Positions start behind the one that padding would have.
void read_roberta(const JsonReader& r, TransformerConfig& c) {
  read_common(r, c);
  c.position_offset = r.integer_or("pad_token_id", 1) + 1;
  if (c.head.kind == HeadKind::kAnswer) c.head.dropout = 0;
}

constexpr std::array kTrunk{
    WeightRule{"embeddings.token", "^embeddings.word_embeddings"},
    WeightRule{"embeddings.position", "^embeddings.position_embeddings"},
    WeightRule{"embeddings.type", "^embeddings.token_type_embeddings"},
    WeightRule{"embeddings.norm", "^embeddings.LayerNorm"},
    WeightRule{"layers.{}.attention.qkv", "^encoder.layer.{}.attention.self.query", Part::kQuery},
    WeightRule{"layers.{}.attention.qkv", "^encoder.layer.{}.attention.self.key", Part::kKey},
    WeightRule{"layers.{}.attention.qkv", "^encoder.layer.{}.attention.self.value", Part::kValue},
    WeightRule{"layers.{}.attention.out", "^encoder.layer.{}.attention.output.dense"},
    WeightRule{"layers.{}.attention_norm", "^encoder.layer.{}.attention.output.LayerNorm"},
    WeightRule{"layers.{}.feed_forward.up", "^encoder.layer.{}.intermediate.dense"},
    WeightRule{"layers.{}.feed_forward.down", "^encoder.layer.{}.output.dense"},
    WeightRule{"layers.{}.feed_forward_norm", "^encoder.layer.{}.output.LayerNorm"},
};

constexpr auto kBertRules =
    join(kTrunk, std::array{
                     WeightRule{"pooler", "^pooler.dense"},
                     WeightRule{"head.dense", "cls.predictions.transform.dense"},
                     WeightRule{"head.norm", "cls.predictions.transform.LayerNorm"},
                     WeightRule{"head.out.weight", "cls.predictions.decoder.weight"},
                     WeightRule{"head.out.bias", "cls.predictions.bias"},
                     WeightRule{"head.out.bias", "cls.predictions.decoder.bias"},
                     WeightRule{"classifier", "qa_outputs", Part::kWhole, false, HeadKind::kAnswer},
                     WeightRule{"classifier", "classifier"},
                 });

constexpr auto kRobertaRules = join(kTrunk, kRobertaHead);

// Buffers, and heads of other tasks in one file.
constexpr std::array<std::string_view, 4> kIgnored{"*embeddings.position_ids",
                                                   "*embeddings.token_type_ids",
                                                   "cls.seq_relationship.*", "*contact_head.*"};

constexpr std::array kBertArchitectures{
    Architecture{"BertModel", HeadKind::kNone},
    Architecture{"BertForMaskedLM", HeadKind::kMaskedLm},
    Architecture{"BertForPreTraining", HeadKind::kMaskedLm},
    Architecture{"BertForSequenceClassification", HeadKind::kSequence},
    Architecture{"BertForTokenClassification", HeadKind::kTokens},
    Architecture{"BertForQuestionAnswering", HeadKind::kAnswer},
};
constexpr std::array kRobertaArchitectures{
    Architecture{"RobertaModel", HeadKind::kNone},
    Architecture{"RobertaForMaskedLM", HeadKind::kMaskedLm},
    Architecture{"RobertaForSequenceClassification", HeadKind::kSequence},
    Architecture{"RobertaForTokenClassification", HeadKind::kTokens},
    Architecture{"RobertaForQuestionAnswering", HeadKind::kAnswer},
};
constexpr std::array kXlmRobertaArchitectures{
    Architecture{"XLMRobertaModel", HeadKind::kNone},
    Architecture{"XLMRobertaForMaskedLM", HeadKind::kMaskedLm},
    Architecture{"XLMRobertaForSequenceClassification", HeadKind::kSequence},
    Architecture{"XLMRobertaForTokenClassification", HeadKind::kTokens},
    Architecture{"XLMRobertaForQuestionAnswering", HeadKind::kAnswer},
};

}  // namespace

constexpr Family kBert{
    "bert", kBertArchitectures, read_bert, {"bert.", false, kBertRules, kIgnored}};
constexpr Family kRoberta{
    "roberta", kRobertaArchitectures, read_roberta, {"roberta.", false, kRobertaRules, kIgnored}};
constexpr Family kXlmRoberta{"xlm-roberta",
                             kXlmRobertaArchitectures,
                             read_roberta,
                             {"roberta.", false, kRobertaRules, kIgnored}};

}  // namespace qkv::inline v0
