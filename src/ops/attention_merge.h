// Two partial results of attention over different keys put together.
#pragma once

#include "qkv/attention.h"

namespace qkv::inline v0::ops {

// The attention over the keys of `a` and of `b` together, from their results over each: with l =
// log(e^la + e^lb) the values are e^(la - l) a + e^(lb - l) b. Associative up to rounding. fp64,
// fp32, bf16, fp16, arithmetic in double; out and lse as `attention` gives them, `weights` is not
// read. A row without keys on one side (lse -inf) takes no part, whatever its values hold; without
// keys on both it gives zeros and -inf. heads_first: padded results [B, H, N, Dv]. Thread-safe; one
// row depends on nothing but itself.
AttentionResult merge_attention(const AttentionResult& a, const AttentionResult& b,
                                bool heads_first = false);

// Gradients of the outputs and lse of both sides from those of the merged result (from `merged`, as
// merge_attention gave it). dlse: undefined for none. Rows that take no part get zeros.
struct MergeGradients {
  Tensor a_out, a_lse, b_out, b_lse;
};
MergeGradients merge_attention_backward(const Tensor& dout, const Tensor& dlse,
                                        const AttentionResult& a, const AttentionResult& b,
                                        const AttentionResult& merged, bool heads_first = false);

}  // namespace qkv::inline v0::ops
