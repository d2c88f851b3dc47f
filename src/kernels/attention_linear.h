// Linear-time attention in fp32 on vectors, and what its kernels are given.
#pragma once

#include "kernels/attention_flash.h"

namespace qkv::inline v0::kernels {

// One (sequence, query head): plain data, see attention_flash.h.
struct LinearHead {
  FlashRows q, k, v, dout;
  FlashOutput out, dq, dk, dv;
  std::int64_t tokens;
  std::int64_t head_size, value_size;
  bool causal, features;  // features: q and k are phi of something already
  float least;            // denominators up to it give zeros
  const float* decay;     // of every token: of the sums before it; null: 1
  bool add_to_kv;         // backward: add to dk, dv (grouped heads)
  float* scratch;         // linear_scratch floats, aligned to 64 bytes
};

struct LinearTable {
  void (*forward)(const LinearHead& head);
  void (*backward)(const LinearHead& head);
  std::int64_t lanes;
};

template <class T>
struct LinearAttentionProblem;

// The implementation chosen for this process (fp64: the reference). Sums run in fp32 over the
// tokens in order; their relative error grows with the root of the length. See
// reference/attention_linear.h for the definition.
template <class T>
void linear_attention(const LinearAttentionProblem<T>& problem);
template <class T>
void linear_attention_backward(const LinearAttentionProblem<T>& problem);

}  // namespace qkv::inline v0::kernels
