// Positive random features (Choromanski et al. 2021, "Rethinking attention with Performers"):
// softmax attention in linear time, up to the noise of a random projection.
#pragma once

#include "qkv/attention.h"

namespace qkv::inline v0::ops {

// Projection [count, D] of `random_feature_attention`: directions that are orthogonal within every
// D rows, lengths of normal vectors. fp32 or fp64; a pure function of the arguments.
Tensor random_features(std::int64_t count, std::int64_t head_size, std::uint64_t seed, DType dtype);

struct RandomFeatureOptions {
  bool causal = false;
  std::optional<double> scale;  // of q k^T, > 0; default 1 / sqrt(D)
};

// out_i = phi(q_i) sum_j phi(k_j) v_j^T / phi(q_i) sum_j phi(k_j), over j <= i when causal, with
// phi_r(x) = exp(w_r x' - |x'|^2 / 2), x' = sqrt(scale) x, w_r the rows of `projection` [m, D]:
// the expected value of phi(q) phi(k) is exp(scale q k), so out tends to softmax attention as m
// grows (docs/attention.md has the error). All features are positive, and each side is kept on the
// scale of its largest, so nothing overflows (a denominator below 1e-30 gives zeros), and later
// keys have no influence when causal. Ragged self-attention only, grouped heads too. Time O(N m
// Dv), memory O(N m). fp32, fp64. Gradient: to q, k, v; the projection is fixed. Thread-safe; bits
// depend on neither threads nor batch mates.
Tensor random_feature_attention(const AttentionInput& input, const Tensor& projection,
                                const RandomFeatureOptions& options);
// dbias must be undefined.
void random_feature_attention_backward(const Tensor& dout, const AttentionInput& input,
                                       const Tensor& projection,
                                       const RandomFeatureOptions& options,
                                       const AttentionGradients& gradients);

}  // namespace qkv::inline v0::ops
