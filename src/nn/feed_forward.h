// Position-wise feed-forward layer.
#pragma once

#include "nn/linear.h"
#include "nn/options.h"

namespace qkv::inline v0::nn {

// down(dropout(activation(up(x)))): [T, C] -> [T, C].
// Parameters: up.weight [F, C] ([2F, C] for gated activations: gate rows first), up.bias;
// down.weight [C, F], down.bias.
class FeedForward {
 public:
  FeedForward(const Builder& parent, const std::string& name, const FeedForwardConfig& config);
  Var operator()(Context& context, const Var& x) const;

 private:
  std::string name_;
  FeedForwardConfig config_;
  Linear up_, down_;
};

}  // namespace qkv::inline v0::nn
