// Shape of an encoder classifier. Names as in the training configuration's [model] table (docs/configuration.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "ops/activation.h"
#include "ops/pooling.h"

namespace qkv::inline v0 {

enum class NormChoice { kLayer, kRms, kNone };
enum class NormPlacement { kPre, kPost, kSandwich };
enum class PositionKind { kSinusoidal, kLearned, kRope, kNone };
enum class AttentionKind { kAuto, kNaive, kFlash, kWindow, kLinear };

struct EncoderConfig {
  std::int64_t d_model = 256, num_layers = 4, num_heads = 8, num_kv_heads = 0 /* 0: num_heads */, d_ff = 1024;
  std::int64_t max_positions = 512, vocab_size = 0;
  NormChoice norm = NormChoice::kLayer;
  NormPlacement norm_placement = NormPlacement::kPre;
  ops::Activation activation = ops::Activation::kGelu;
  PositionKind positions = PositionKind::kLearned;
  AttentionKind attention = AttentionKind::kAuto;
  std::int64_t window = 0;  // for AttentionKind::kWindow
  ops::Pooling pooling = ops::Pooling::kMean;
  double rope_base = 10000, norm_eps = 1e-5;
  bool bias = true;            // of the linear layers
  bool embedding_norm = false;  // BERT: a norm after the sum of embeddings; post placement sets it by default
  double attention_dropout = 0.1, hidden_dropout = 0.1, activation_dropout = 0.1, embedding_dropout = 0.1;
  std::vector<std::string> labels;  // class names; their number is the width of the head

  std::int64_t kv_heads() const { return num_kv_heads > 0 ? num_kv_heads : num_heads; }
  std::int64_t head_size() const { return d_model / num_heads; }
  // All faults at once, one sentence each, empty if none ("d_model: expected a multiple of num_heads 7, got 256").
  std::vector<std::string> faults() const;
  Json to_json() const;                       // config.json: BERT's keys when transformers can load it, else model_type "qkv"
  static EncoderConfig from_json(const Json& json);  // ModelError naming the key
};

}  // namespace qkv::inline v0
