// Multi-head self-attention: one projection, views, and a projection back.
#pragma once

#include "nn/linear.h"
#include "nn/norm.h"
#include "nn/options.h"

namespace qkv::inline v0::nn {

// x: [T, C] -> [T, C] over context.layout. With context.cache each sequence attends to the keys of
// its stream as well, and leaves its own there; the mask must be causal.
// Parameters: qkv.weight [(H + 2 Hkv) D, C] with the heads of q, k, v in this order, qkv.bias;
// out.weight [C, H D], out.bias; with head_norm query_norm.* and key_norm.*, [D] each.
class MultiHeadAttention {
 public:
  MultiHeadAttention(const Builder& parent, const std::string& name, const AttentionConfig& config);
  Var operator()(Context& context, const Var& x) const;

 private:
  // The same over the cache's keys. qkv: [T, (H + 2 Hkv) D] -> [T, H D].
  Var attend_cached(const Context& context, const Var& qkv,
                    const ops::AttentionOptions& options) const;

  std::string name_;
  AttentionConfig config_;
  autograd::HeadLayout heads_;
  Linear qkv_, out_;
  Norm query_norm_, key_norm_;
};

}  // namespace qkv::inline v0::nn
