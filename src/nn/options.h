// Choices that a transformer block offers.
#pragma once

#include <cstdint>
#include <optional>

#include "ops/activation.h"
#include "ops/rope.h"

namespace qkv::inline v0 {

enum class NormChoice { kLayer, kRms, kNone };
enum class NormPlacement { kPre, kPost, kSandwich };
enum class AttentionKind { kAuto, kNaive, kFlash, kWindow, kLinear };

namespace nn {

struct AttentionConfig {
  std::int64_t d_model = 256, heads = 8, kv_heads = 8;
  AttentionKind kind = AttentionKind::kAuto;
  std::int64_t window = 0;               // kWindow: a query sees keys at distances < window
  std::optional<ops::RopeOptions> rope;  // rotary positions
  double dropout = 0;                    // on the weights; linear attention has none
  bool bias = true;
};

struct FeedForwardConfig {
  std::int64_t d_model = 256, d_ff = 1024;
  ops::Activation activation = ops::Activation::kGelu;
  double dropout = 0;  // after the activation
  bool bias = true;
};

struct NormConfig {
  NormChoice choice = NormChoice::kLayer;
  double eps = 1e-5;
};

struct BlockConfig {
  AttentionConfig attention;
  FeedForwardConfig feed_forward;  // d_ff == 0: the block has attention only
  NormConfig norm;
  NormPlacement placement = NormPlacement::kPre;
  double hidden_dropout = 0;  // on what a sublayer adds to the residual stream
};

}  // namespace nn
}  // namespace qkv::inline v0
