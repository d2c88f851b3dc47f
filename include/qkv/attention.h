// Scaled dot-product attention over ragged or padded sequences.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "qkv/layout.h"
#include "qkv/mask.h"
#include "qkv/random_key.h"
#include "qkv/tensor.h"

namespace qkv::inline v0::ops {

// kAuto picks the first implementation that takes the problem. kNaive keeps the whole score matrix
// of a sequence.
enum class AttentionBackend { kAuto, kNaive, kFlash };

struct AttentionOptions {
  Mask mask;  // array masks are indexed by (sequence, head, query in sequence, key in sequence)
  std::optional<double> scale;    // default 1 / sqrt(D)
  std::optional<double> softcap;  // > 0: scores become softcap * tanh(score / softcap), before bias
  double dropout_p = 0;           // on the weights after softmax; kept weights are divided by 1 - p
  RandomKey dropout_key;
  AttentionBackend backend = AttentionBackend::kAuto;
  bool return_weights = false;  // costs O(N S) memory
};

// How the sequences lie in the tensors. Ragged: q [T, H, D], k [S_total, Hkv, D], v [S_total, Hkv,
// Dv], any strides over tokens and heads, the last dimension contiguous; `queries` and `keys` give
// the sequences (the same object for self-attention). Padded input [B, N, H, D] or [B, H, N, D] is
// read in place: leave both layouts null.
struct AttentionInput {
  Tensor q, k, v;
  const RaggedLayout* queries = nullptr;  // null: padded
  const RaggedLayout* keys = nullptr;
  bool heads_first = false;  // padded [B, H, N, D] instead of [B, N, H, D]
};

struct AttentionResult {
  Tensor out;  // as q with Dv in place of D, contiguous: [T, H, Dv], [B, N, H, Dv] or [B, H, N, Dv]
  Tensor lse;  // natural log of the sum of exponentials, fp32 (fp64 for fp64): [H, T] or [B, H, N];
               // -inf where no key is visible
  Tensor weights;  // if asked, of lse's type: padded [B, H, N, S]; ragged: one flat tensor of B
                   // blocks [H, N_b, S_b] in order
};

// out = softmax(cap(scale * q k^T) + bias over visible keys) v per sequence and head; query head h
// uses key/value head h * Hkv / H. fp64, fp32, bf16 and fp16 (16-bit types
// for storage: softmax and sums are fp32). Exact semantics: docs/attention.md. Thread-safe;
// bits depend on neither threads nor the other sequences of the batch.
QKV_API AttentionResult attention(const AttentionInput& input, const AttentionOptions& options);

// Where gradients go: dq, dk, dv are views shaped like q, k, v (any strides over tokens and heads),
// overwritten. dbias, if defined, gets the gradient of an additive bias: fp32 or fp64, of a shape
// that Mask::additive takes, summed over its extents of 1. Elements behind the end of a sequence
// and those that no query sees get 0.
struct AttentionGradients {
  Tensor dq, dk, dv, dbias;
};
QKV_API void attention_backward(const Tensor& dout, const AttentionInput& input,
                                const AttentionResult& result, const AttentionOptions& options,
                                const AttentionGradients& gradients);
// The same where lse has a gradient too: dlse like lse, undefined for none. Rows without keys take
// none.
QKV_API void attention_backward(const Tensor& dout, const Tensor& dlse, const AttentionInput& input,
                                const AttentionResult& result, const AttentionOptions& options,
                                const AttentionGradients& gradients);

// Which implementation `attention` would take, best first, each refused one with its reason.
struct AttentionChoice {
  std::string name;     // "flash-avx512"
  std::string refusal;  // empty for the one taken
};
QKV_API std::vector<AttentionChoice> explain_attention(const AttentionInput& input,
                                                       const AttentionOptions& options);

// Linear-time attention (Katharopoulos et al. 2020): out_i = phi(q_i) sum_j phi(k_j) v_j^T /
// phi(q_i) sum_j phi(k_j), phi(x) = elu(x) + 1, over j <= i when causal. Ragged self-attention
// only. No scale. fp32, fp64. Gradient: below.
QKV_API Tensor linear_attention(const AttentionInput& input, bool causal);
QKV_API void linear_attention_backward(const Tensor& dout, const AttentionInput& input, bool causal,
                                       const AttentionGradients& gradients);

}  // namespace qkv::inline v0::ops
