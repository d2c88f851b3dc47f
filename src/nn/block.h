// The encoder block: the unit of parameters, capture, telemetry and (later) recomputation.
#pragma once

#include <optional>
#include <string>

#include "nn/attention.h"
#include "nn/feed_forward.h"
#include "nn/norm.h"

namespace qkv::inline v0::nn {

// With f one of attention and feed-forward, in this order, and d = dropout:
//   pre       x = x + d(f(norm(x)))            (Xiong et al. 2020)
//   post      x = norm(x + d(f(x)))            (Vaswani et al. 2017)
//   sandwich  x = x + d(norm'(f(norm(x))))     (Ding et al. 2021)
// Parameters: attention.*, attention_norm.*, feed_forward.*, feed_forward_norm.*, and for sandwich
// attention_post_norm.*, feed_forward_post_norm.*. norm = none leaves all norms out; d_ff = 0
// leaves the feed-forward layer out.
class Block {
 public:
  Block(const Builder& parent, const std::string& name, const BlockConfig& config);
  // Moves the stream [T, C] through the block. The last sum may still be pending in the stream.
  void operator()(Context& context, ResidualStream& stream) const;

 private:
  struct Sublayer {
    Norm norm, post_norm;
  };
  template <class F>
  void run(Context& context, ResidualStream& stream, const Sublayer& sublayer, const F& f,
           int which) const;

  std::string name_;
  NormPlacement placement_;
  double dropout_;
  Sublayer attention_norms_, feed_forward_norms_;
  std::optional<MultiHeadAttention> attention_;
  std::optional<FeedForward> feed_forward_;
};

}  // namespace qkv::inline v0::nn
