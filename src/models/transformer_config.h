// What a Transformer of any family looks like: plain data that the readers of config.json, of GGUF
// metadata and of training configurations fill in (models/families).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/config.h"
#include "nn/options.h"
#include "ops/pooling.h"

namespace qkv::inline v0 {

// What follows the trunk, and the shape of logits():
//   kNone      nothing
//   kMaskedLm  a score of every token of the vocabulary at each token, [T, V]
//   kLm        the same, of the token that comes next, [T, V]
//   kSequence  a score of every label for each text, [B, labels] (a cross-encoder has one label)
//   kTokens    a score of every label for each token, [T, labels]
//   kAnswer    scores of being an answer's first and last token, [T, 2]
enum class HeadKind { kNone, kMaskedLm, kLm, kSequence, kTokens, kAnswer };
const char* head_kind_name(HeadKind kind);  // "none", "masked_lm", "lm", ...

// logits = out(dropout(norm(activation(dense(x))))), where x is each token, or the pooled text for
// kSequence. The parts that are not there are left out; kNone may still have `dense` (BERT's
// pooler), which pooled() applies.
struct HeadConfig {
  HeadKind kind = HeadKind::kNone;
  ops::Pooling pooling = ops::Pooling::kFirst;  // kSequence, and kNone with `dense`
  bool dense = false, dense_bias = true;
  ops::Activation activation = ops::Activation::kNone;
  bool norm = false;              // of the trunk's kind
  bool bias = true;               // of `out`
  bool tied = false;              // the weight of `out` is the token embedding
  std::optional<double> softcap;  // logits become softcap * tanh(logits / softcap)
  double dropout = 0;
  std::vector<std::string> labels;  // kSequence, kTokens: their names

  std::int64_t num_labels() const { return static_cast<std::int64_t>(labels.size()); }
};

struct TransformerConfig {
  std::string model_type;  // the family, as config.json calls it: "bert"
  std::int64_t vocab_size = 0, d_model = 0, num_layers = 0, num_heads = 0, num_kv_heads = 0;
  std::int64_t head_size = 0;  // need not be d_model / num_heads
  std::int64_t d_ff = 0 /* 0: blocks of attention only */, max_positions = 0;

  // Embeddings: norm(scale * token + position + type), each part where there is one.
  double embedding_scale = 1;
  std::int64_t type_vocab = 0;  // rows of the table of token types (segments); 0: none
  bool embedding_norm = false;
  PositionKind positions = PositionKind::kNone;
  std::int64_t position_offset = 0;  // learned: row of the first token (RoBERTa: padding id + 1)
  ops::RopeOptions rope;             // kRope
  std::optional<ops::RopeOptions> local_rope;  // of layers with a window, if another one
  std::int64_t relative_buckets = 0;  // > 0: a bias of the scores by bucketed distance (MPNet, T5)
  std::int64_t relative_distance = 128;  // from which on all share the last bucket

  // Blocks.
  nn::NormConfig norm;
  NormPlacement placement = NormPlacement::kPre;
  bool first_attention_norm = true;  // false: block 0 attends without a norm (ModernBERT)
  bool final_norm = true;            // after the last block
  AttentionKind attention = AttentionKind::kAuto;
  bool causal = false;
  std::vector<std::int64_t> windows;  // per layer: keys at distances < n are seen; 0, none: all
  bool head_norms = false;            // RMSNorm of query and key heads (Qwen3, Gemma 3)
  std::optional<double> attention_scale, attention_softcap;
  bool qkv_bias = true, out_bias = true, feed_forward_bias = true;
  ops::Activation activation = ops::Activation::kGelu;  // of the feed-forward layer, gated or not

  double attention_dropout = 0, hidden_dropout = 0, activation_dropout = 0, embedding_dropout = 0;
  HeadConfig head;

  std::int64_t window(std::int64_t layer) const {
    return windows.empty() ? 0 : windows[static_cast<std::size_t>(layer)];
  }
  // Group and path of block `layer`: "encoder.layers.3", or "decoder.layers.3" if causal.
  std::string layer_name(std::int64_t layer) const;
  const char* stack_name() const { return causal ? "decoder" : "encoder"; }
  // Tokens that a text may have, where a table ends; nothing for rotary positions and none.
  std::optional<std::int64_t> position_limit() const;
  // The most tokens that the model was made for: the table's, or what the configuration says.
  std::int64_t max_tokens() const { return max_positions - position_offset; }
  nn::BlockConfig block(std::int64_t layer) const;

  // All faults at once, one sentence each, empty if none.
  std::vector<std::string> faults() const;
};

}  // namespace qkv::inline v0
