// Choices that a transformer block offers.
#pragma once

#include <cstdint>
#include <optional>

#include "qkv/mask.h"

#include "ops/activation.h"
#include "ops/rope.h"

namespace qkv::inline v0 {

enum class NormChoice { kLayer, kRms, kNone };
enum class NormPlacement { kPre, kPost, kSandwich };
enum class AttentionKind { kAuto, kNaive, kFlash, kWindow, kLinear };

namespace nn {

struct NormConfig {
  NormChoice choice = NormChoice::kLayer;
  double eps = 1e-5;
  bool bias = true;          // of kLayer
  bool unit_offset = false;  // the stored weight w stands for 1 + w (Gemma)
};

struct AttentionConfig {
  std::int64_t d_model = 256, heads = 8, kv_heads = 8;
  std::int64_t head_size = 0;  // 0: d_model / heads
  AttentionKind kind = AttentionKind::kAuto;
  std::int64_t window = 0;               // kWindow: a query sees keys at distances < window
  Mask mask;                             // of every text: causal, a window. Not for kLinear
  std::optional<ops::RopeOptions> rope;  // rotary positions
  std::optional<NormConfig> head_norm;   // of every query and key head, before rotation
  std::optional<double> scale, softcap;  // of the scores (qkv/attention.h)
  double dropout = 0;                    // on the weights; linear attention has none
  bool bias = true, out_bias = true;     // of the projection to q, k, v, and of the one back
  std::int64_t layer = 0;                // its place in a cache of keys and values
};

struct FeedForwardConfig {
  std::int64_t d_model = 256, d_ff = 1024;
  ops::Activation activation = ops::Activation::kGelu;
  double dropout = 0;  // after the activation
  bool bias = true;
};

struct BlockConfig {
  AttentionConfig attention;
  bool attention_norm = true;  // false: attention reads the stream as it is (ModernBERT's first)
  FeedForwardConfig feed_forward;  // d_ff == 0: the block has attention only
  NormConfig norm;
  NormPlacement placement = NormPlacement::kPre;
  double hidden_dropout = 0;  // on what a sublayer adds to the residual stream
};

}  // namespace nn
}  // namespace qkv::inline v0
