// Flash attention, backward: what a run of queries of one head keeps in scratch memory.
#pragma once

#include "kernels/simd/attention_pack.h"

namespace qkv::inline v0::kernels::QKV_ISA {

struct BackwardBuffers {
  std::int64_t first;  // the query that everything below begins with
  float *q, *dout;     // [D][tile], [Dv][tile] of every query tile, transposed and times scale
                       // log2(e), and times early_scale
  float *lse,
      *delta;  // of every query; lse in the log2 domain, 0 for -inf; delta times early_scale
  float *weights, *dropped;  // [kBackwardKeys][tile]: p, and p after dropout
  float* score_gradients;    // [kBackwardKeys][tile]: dp, then ds, times early_scale; then scale ds
  float* cap_slopes;         // [kBackwardKeys][tile]: what the soft-cap passes of a gradient
  float* bias;               // [kBackwardKeys][tile]
  float *k_rows, *v_rows;    // [kBackwardKeys][width]
  float *q_rows, *dout_rows;  // [queries][width]
  float *dk, *dv;             // [kBackwardKeys][width]
  float* dq;                  // [queries][width]
  // A head of one tile works on the caller's rows. Else rows are copied close together in whole
  // registers, and sums over tiles are kept likewise.
  bool in_place;
  // Score gradients carry the scale from the first, but where they serve the bias or the soft-cap
  // before.
  float early_scale;
  float score_factor;  // of products to scores where nothing else happens to them
};
QKV_INLINE BackwardBuffers backward_buffers(const FlashHead& h, FlashRange queries) {
  const std::int64_t tile = h.tile, padded = round_up(queries.end - queries.begin, tile);
  const std::int64_t head_width = round_up(h.head_size, kLanes);
  const std::int64_t value_width = round_up(h.value_size, kLanes);
  BackwardBuffers b;
  b.first = queries.begin;
  b.in_place = head_width == h.head_size && value_width == h.value_size && h.queries <= tile &&
               h.keys <= kBackwardKeys;
  b.early_scale = h.softcap != 0 || h.add_bias_gradient ? 1 : h.scale;
  b.score_factor = 1;
  b.q = h.scratch;
  b.dout = b.q + padded * h.head_size;
  b.lse = b.dout + padded * h.value_size;
  b.delta = b.lse + padded;
  b.weights = b.delta + padded;
  b.dropped = b.weights + kBackwardKeys * tile;
  b.score_gradients = b.dropped + kBackwardKeys * tile;
  b.cap_slopes = b.score_gradients + kBackwardKeys * tile;
  b.bias = b.cap_slopes + kBackwardKeys * tile;
  b.k_rows = b.bias + kBackwardKeys * tile;
  b.v_rows = b.k_rows + kBackwardKeys * head_width;
  b.q_rows = b.v_rows + kBackwardKeys * value_width;
  b.dout_rows = b.q_rows + padded * head_width;
  b.dk = b.dout_rows + padded * value_width;
  b.dv = b.dk + kBackwardKeys * head_width;
  b.dq = b.dv + kBackwardKeys * value_width;
  return b;
}

}  // namespace qkv::inline v0::kernels::QKV_ISA
