// Ops on Vars: each computes its result and, when the context records, leaves its backward rule on
// the tape.
//
// One rule per op, in the file of its name. Shapes, formulas, dtypes and accuracy are those of
// ops/*.h. Every function throws what its op throws. An input without requires_grad gets no
// gradient and costs none. Not thread-safe: one Context per caller.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "qkv/attention.h"

#include "autograd/context.h"
#include "autograd/var.h"
#include "ops/linear.h"
#include "ops/norm.h"
#include "ops/pooling.h"
#include "ops/rope.h"
#include "ops/softmax.h"

namespace qkv::inline v0::autograd {

// activation(x w^T + bias). x: [T, K], w: [N, K], bias: [N] or undefined -> [T, N], or [T, N / 2]
// for gated kinds.
Var linear(Context& context, const Var& x, const Var& w, const Var& bias,
           ops::Activation activation = ops::Activation::kNone);

// activation(x) alone: [T, N] -> [T, N], or [T, 2F] -> [T, F].
Var activate(Context& context, const Var& x, ops::Activation activation);

// table[ids[t]] * scale. table: [V, C] -> [T, C]. The ids are copied for the backward pass.
Var embedding(Context& context, std::span<const std::int32_t> ids, const Var& table, double scale,
              const char* where);

struct NormWeights {
  ops::NormKind kind = ops::NormKind::kLayer;
  Var gamma;  // [C]
  Var beta;   // [C] or undefined
  double eps = 1e-5;
};
Var norm(Context& context, const Var& x, const NormWeights& weights);

// sum = residual + dropout(x), y = norm(sum), one pass. Gradients may arrive at both results.
struct AddNorm {
  Var sum, y;  // [T, C]
};
AddNorm add_norm(Context& context, const Var& x, const Var& residual,
                 const ops::DropoutOptions& dropout, const NormWeights& weights);

// `layout` owns options.layout where that is not context.layout.
Var dropout(Context& context, const Var& x, const ops::DropoutOptions& options,
            std::shared_ptr<const RaggedLayout> layout = nullptr);
Var add_dropout(Context& context, const Var& x, const Var& residual,
                const ops::DropoutOptions& options);
Var add(Context& context, const Var& a, const Var& b);

// How one projection [T, (H + 2 Hkv) D] holds queries, keys and values: heads in the order q, k, v.
struct HeadLayout {
  std::int64_t heads = 1, kv_heads = 1, head_size = 1;
  std::int64_t width() const { return (heads + 2 * kv_heads) * head_size; }
};

// Norms of every query head and every key head over its channels, in x's own memory (x must not be
// used afterwards). x: [T, (H + 2 Hkv) D] -> the same; the weights are [D].
Var head_norm(Context& context, const Var& x, const HeadLayout& heads, const NormWeights& query,
              const NormWeights& key);

// Rotates the queries and keys in x's own memory (x must not be used afterwards), by the layout's
// positions; under dynamic scaling each text by its own length. x: [T, (H + 2 Hkv) D] -> the same.
Var rope(Context& context, const Var& x, const HeadLayout& heads, const ops::RopeOptions& options);

// Ragged self-attention over context.layout. qkv: [T, (H + 2 Hkv) D] -> [T, H D]. The context's
// capture sink gets the weights if it wants them. bias: added to the scores, of a shape that
// Mask::additive takes; its gradient is summed over extents of 1.
Var attention(Context& context, const Var& qkv, const HeadLayout& heads,
              const ops::AttentionOptions& options, const Var& bias = Var());

// Bias of scores by distance (Raffel et al. 2020, T5): y[0, h, i, j] = table[bucket(i - j), h],
// with half of the buckets for keys in front of the query and half for those behind; in each half
// the first half is one distance each, the others grow with the logarithm up to max_distance.
// table: [buckets, H] -> [1, H, n, n].
Var distance_bias(Context& context, const Var& table, std::int64_t n, std::int64_t max_distance);

// Linear-time attention (qkv/attention.h), same shapes.
Var linear_attention(Context& context, const Var& qkv, const HeadLayout& heads, bool causal);

// One vector per sequence of context.layout: [T, C] -> [B, C].
Var pool(Context& context, const Var& x, ops::Pooling pooling);

Var softmax(Context& context, const Var& x);

// cap * tanh(x / cap), cap > 0. fp32, fp64.
Var softcap(Context& context, const Var& x, double cap);

struct Loss {
  Var sum;                   // [1]: sum of the losses of counted rows, in the dtype of the logits
  double value = 0;          // the same in double
  std::int64_t counted = 0;  // rows whose target is not ignored: divide by the global count once
  std::int64_t correct = 0;
};
Loss cross_entropy(Context& context, const Var& logits, std::span<const std::int32_t> targets,
                   const ops::CrossEntropyOptions& options);

}  // namespace qkv::inline v0::autograd
