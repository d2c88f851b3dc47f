// Shape of an encoder classifier. Names as in the training configuration's [model] table
// (docs/configuration.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "nn/options.h"
#include "ops/activation.h"
#include "ops/pooling.h"

namespace qkv::inline v0 {

enum class PositionKind { kSinusoidal, kLearned, kRope, kNone };

// Names as configurations write them: "layer" "rms" "none"; "pre" "post" "sandwich"; "sinusoidal"
// "learned" "rope" "none"; "auto" "naive" "flash" "window" "linear". Parsing anything else is a
// ConfigError that names the known ones.
const char* norm_choice_name(NormChoice choice);
const char* norm_placement_name(NormPlacement placement);
const char* position_kind_name(PositionKind kind);
const char* attention_kind_name(AttentionKind kind);
NormChoice parse_norm_choice(std::string_view name);
NormPlacement parse_norm_placement(std::string_view name);
PositionKind parse_position_kind(std::string_view name);
AttentionKind parse_attention_kind(std::string_view name);

struct EncoderConfig {
  std::int64_t d_model = 256, num_layers = 4, num_heads = 8, num_kv_heads = 0 /* 0: num_heads */;
  std::int64_t d_ff = 1024 /* 0: blocks of attention only */, max_positions = 512, vocab_size = 0;
  NormChoice norm = NormChoice::kLayer;
  NormPlacement norm_placement = NormPlacement::kPre;
  ops::Activation activation = ops::Activation::kGelu;
  PositionKind positions = PositionKind::kLearned;
  AttentionKind attention = AttentionKind::kAuto;
  std::int64_t window = 0;  // for AttentionKind::kWindow
  ops::Pooling pooling = ops::Pooling::kMean;
  double rope_base = 10000, norm_eps = 1e-5;
  bool bias = true;             // of the linear layers inside the blocks
  bool embedding_norm = false;  // a norm after the sum of embeddings
  bool pooler = false;          // dense + tanh after pooling (BERT)
  // Shares from 0 to 1. Linear attention has no weights to drop: attention_dropout does nothing
  // there.
  double attention_dropout = 0.1, hidden_dropout = 0.1, activation_dropout = 0.1,
         embedding_dropout = 0.1;
  std::vector<std::string> labels;  // class names; their number is the width of the head

  std::int64_t kv_heads() const { return num_kv_heads > 0 ? num_kv_heads : num_heads; }
  std::int64_t head_size() const { return d_model / num_heads; }
  std::int64_t num_labels() const { return static_cast<std::int64_t>(labels.size()); }
  // embedding_norm and pooler as the placement wants them: BERT's for post (the pooler only with
  // first pooling), else none. Readers of configurations call it before the keys that the user did
  // give.
  void set_placement_defaults();
  // Positions of the table, or nothing where any length will do (rope, none).
  std::optional<std::int64_t> position_limit() const;
  // Whether transformers' BertForSequenceClassification computes the same function.
  bool is_bert() const;

  // All faults at once, one sentence each, empty if none ("d_model: expected a multiple of
  // num_heads 7, got 256").
  std::vector<std::string> faults() const;
  Json to_json() const;  // config.json: BERT's keys if is_bert(), else model_type "qkv"
  static EncoderConfig from_json(const Json& json);  // ModelError naming the key
};

}  // namespace qkv::inline v0
