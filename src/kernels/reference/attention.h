// Attention from the definition, in double: what every faster path is compared with.
#pragma once

#include "kernels/attention.h"

namespace qkv::inline v0::kernels {

// Keeps the whole score matrix of each (sequence, head) in turn. T: double, float, BFloat16 or
// Float16 storage; all arithmetic is in double. Skips what is masked: it is never read. Rows
// without keys give zeros and lse -inf. Bits depend neither on threads nor on the other sequences.
template <class T>
void attention_reference(const AttentionProblem<T>& problem);

// Overwrites dq, dk, dv (and dbias); needs q, k, v and dout (out and lse are computed again).
template <class T>
void attention_backward_reference(const AttentionProblem<T>& problem);

}  // namespace qkv::inline v0::kernels
