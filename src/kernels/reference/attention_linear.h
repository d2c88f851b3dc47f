// Linear-time attention from its running sums, in double.
#pragma once

#include "kernels/attention.h"

namespace qkv::inline v0::kernels {

// out_i = phi(q_i)^T S_i / (phi(q_i) . z_i) with S_i = sum_j phi(k_j) v_j^T, z_i = sum_j phi(k_j),
// phi(x) = elu(x) + 1, over j <= i when causal, else over all j. Time O(N D Dv), memory O(D Dv)
// and, backward, O(N). A denominator that is not above `least` gives zeros.
template <class T>
void linear_attention_reference(const LinearAttentionProblem<T>& problem);
template <class T>
void linear_attention_backward_reference(const LinearAttentionProblem<T>& problem);

}  // namespace qkv::inline v0::kernels
