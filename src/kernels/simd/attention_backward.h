// Flash attention, backward: key blocks in order; per block the query tiles that see it. Weights
// are computed again from lse.
#pragma once

#include "kernels/simd/attention_forward.h"

namespace qkv::inline v0::kernels::QKV_ISA {

struct BackwardBuffers {
  float *q, *dout;                     // [D][tile], [Dv][tile] of every query tile, transposed and
                                       // multiplied by scale log2(e), and by scale
  float *lse, *delta;                  // of every query; lse in the log2 domain, 0 for -inf;
                                       // delta times scale
  float *weights, *dropped;            // [kBackwardKeys][tile]: p, and p after dropout
  float* score_gradients;              // [kBackwardKeys][tile]: scale dp, then scale ds
  float* bias;                         // [kBackwardKeys][tile]
  float *k_rows, *q_rows, *dout_rows;  // rows in whole registers, where they are not
  float *dk, *dv;                      // [kBackwardKeys][width] where rows are not whole registers
  float* dq;                           // [N][width] likewise
  bool in_place;
};
QKV_INLINE BackwardBuffers backward_buffers(const FlashHead& h) {
  const std::int64_t tile = h.tile, padded = round_up(h.queries, tile);
  const std::int64_t head_width = round_up(h.head_size, kLanes);
  const std::int64_t value_width = round_up(h.value_size, kLanes);
  BackwardBuffers b;
  // Sums over tiles are kept close together; a single tile is written in place.
  b.in_place = head_width == h.head_size && value_width == h.value_size && h.queries <= tile &&
               h.keys <= kBackwardKeys;
  b.q = h.scratch;
  b.dout = b.q + padded * h.head_size;
  b.lse = b.dout + padded * h.value_size;
  b.delta = b.lse + padded;
  b.weights = b.delta + padded;
  b.dropped = b.weights + kBackwardKeys * tile;
  b.score_gradients = b.dropped + kBackwardKeys * tile;
  b.bias = b.score_gradients + kBackwardKeys * tile;
  b.k_rows = b.bias + kBackwardKeys * tile;
  b.q_rows = b.k_rows + kBackwardKeys * head_width;
  b.dout_rows = b.q_rows + tile * head_width;
  b.dk = b.dout_rows + tile * value_width;
  b.dv = b.dk + kBackwardKeys * head_width;
  b.dq = b.dv + kBackwardKeys * value_width;
  if (b.in_place) b.dq = h.dq.data;
  return b;
}

// Transposes q and dout of every tile, and prepares lse and (if asked) delta = dout . out. The
// scale of ds is carried by the transposed dout and by delta.
QKV_INLINE void prepare_queries(const FlashHead& h, const BackwardBuffers& b, bool with_delta) {
  const std::int64_t padded = round_up(h.queries, h.tile);
  for (std::int64_t first = 0; first < h.queries; first += h.tile) {
    const std::int64_t count = smaller(h.tile, h.queries - first);
    const std::int64_t width = round_up(count, kLanes);
    pack_transposed({h.q.data + first * h.q.stride, h.q.stride}, count, h.head_size,
                    h.scale * kLog2E, b.q + first * h.head_size, width);
    pack_transposed({h.dout.data + first * h.dout.stride, h.dout.stride}, count, h.value_size,
                    h.scale, b.dout + first * h.value_size, width);
  }
  for (std::int64_t i = 0; i < padded; i += kLanes) {
    const F32 lse = load(h.lse + i, first_lanes(h.queries - i));
    store(b.lse + i, select(lse == minus_infinity(), zero(), lse * set(kLog2E)));
  }
  if (!with_delta) return;
  for (std::int64_t i = 0; i < h.queries; ++i) {
    F32 total = zero();
    for (std::int64_t d = 0; d < h.value_size; d += kLanes) {
      const Mask lanes = first_lanes(h.value_size - d);
      total = fma(load(h.dout.data + i * h.dout.stride + d, lanes),
                  load(h.out.data + i * h.out.stride + d, lanes), total);
    }
    b.delta[i] = sum(total) * h.scale;
  }
  for (std::int64_t i = h.queries; i < padded; ++i) b.delta[i] = 0;
}

// p (dp - delta), and exactly 0 where p is: a hidden key may have any dp.
QKV_INLINE F32 score_gradient(F32 p, F32 dp, F32 delta) {
  return keep(p != zero(), p * (dp - delta));
}

// Of one register of queries: scores s to weights p = 2^(s - lse), and dp to ds = p (dp - delta).
QKV_INLINE void gradient_register(const FlashTile& t, const BackwardBuffers& b, RowRange range,
                                  std::int64_t lane) {
  const F32 lse = load(b.lse + t.first_query + lane), delta = load(b.delta + t.first_query + lane);
  for (std::int64_t r = range.begin; r < range.end; ++r) {
    float* weight = b.weights + r * t.stride + lane;
    float* gradient = b.score_gradients + r * t.stride + lane;
    const F32 p = exp2_weight(load(weight) - lse);
    store(weight, p);
    store(gradient, score_gradient(p, load(gradient), delta));
  }
}

// Dropout on dp and on a copy of p.
QKV_INLINE void drop_gradient_register(const FlashHead& h, const FlashTile& t,
                                       const BackwardBuffers& b, RowRange range,
                                       std::int64_t lane) {
  const U32 threshold = set(h.threshold);
  const F32 scale = set(h.keep_scale);
  for (std::int64_t block = range.begin & ~std::int64_t{3}; block < range.end; block += 4) {
    const PhiloxVectors numbers = dropout_numbers(h, t.first_query + lane, t.first_key + block);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      if (block + i < range.begin || block + i >= range.end) continue;
      const std::int64_t at = (block + i) * t.stride + lane;
      const Mask kept = ~less_unsigned(numbers.word[i], threshold);
      store(b.dropped + at, keep(kept, load(b.weights + at) * scale));
      store(b.score_gradients + at, keep(kept, load(b.score_gradients + at) * scale));
    }
  }
}

// As gradient_register in several passes: with dropout, and where delta = sum of p dp is still to
// be formed because the tile holds all keys (`own_delta`).
QKV_INLINE void gradient_register_in_passes(const FlashHead& h, const FlashTile& t,
                                            const BackwardBuffers& b, RowRange range,
                                            std::int64_t lane, bool own_delta) {
  const F32 lse = load(b.lse + t.first_query + lane);
  F32 delta = own_delta ? zero() : load(b.delta + t.first_query + lane);
  for (std::int64_t r = range.begin; r < range.end; ++r) {
    float* weight = b.weights + r * t.stride + lane;
    const F32 p = exp2_weight(load(weight) - lse);
    store(weight, p);
    if (own_delta && !h.dropout)
      delta = delta + keep(p != zero(), p * load(b.score_gradients + r * t.stride + lane));
  }
  if (h.dropout) {
    drop_gradient_register(h, t, b, range, lane);
    if (own_delta)
      for (std::int64_t r = range.begin; r < range.end; ++r) {
        const F32 p = load(b.weights + r * t.stride + lane);
        delta = delta + keep(p != zero(), p * load(b.score_gradients + r * t.stride + lane));
      }
  }
  for (std::int64_t r = range.begin; r < range.end; ++r) {
    float* gradient = b.score_gradients + r * t.stride + lane;
    store(gradient, score_gradient(load(b.weights + r * t.stride + lane), load(gradient), delta));
  }
}

struct BlockOutputs {
  float *dk, *dv;
  std::int64_t dk_stride, dv_stride;
  bool add;
};

// One key block against one query tile: adds to dq, and to dk, dv unless it is their first tile.
// With `only_block` delta comes from the tile itself and dq is overwritten.
[[gnu::noinline]] static bool backward_tile(const FlashHead& h, const BackwardBuffers& b,
                                            const FlashTile& t, const BlockOutputs& to,
                                            bool only_block) {
  bool skip = false;
  const TileMask mask = tile_mask(h, t, b.bias, &skip);
  if (skip) return false;
  const std::int64_t vectors = t.stride / kLanes;
  const FlashRows k = {h.k.data + t.first_key * h.k.stride, h.k.stride};
  const FlashRows v = {h.v.data + t.first_key * h.v.stride, h.v.stride};
  const FlashRows q = {h.q.data + t.first_query * h.q.stride, h.q.stride};
  const FlashRows g = {h.dout.data + t.first_query * h.dout.stride, h.dout.stride};
  product_by_columns({k.data, k.stride, 1, b.q + t.first_query * h.head_size, t.stride, b.weights,
                      t.stride, h.head_size, nullptr, nullptr, false},
                     t.keys, vectors, mask.of_key);
  product_by_columns({v.data, v.stride, 1, b.dout + t.first_query * h.value_size, t.stride,
                      b.score_gradients, t.stride, h.value_size, nullptr, nullptr, false},
                     t.keys, vectors, mask.of_key);
  for (std::int64_t lane = 0; lane < t.stride; lane += kLanes) {
    const RowRange range = rows_of_register(mask, lane, t.keys);
    if (mask.partial) mask_scores(mask, b.weights, t.stride, lane, range);
    if (h.dropout || only_block)
      gradient_register_in_passes(h, t, b, range, lane, only_block);
    else
      gradient_register(t, b, range, lane);
    if (mask.partial) {
      zero_beside(h.dropout ? b.dropped : b.weights, t.stride, lane, range, t.keys);
      zero_beside(b.score_gradients, t.stride, lane, range, t.keys);
    }
  }
  const bool finite = !mask.partial || (all_finite(k, t.keys, h.head_size) &&
                                        all_finite(q, t.queries, h.head_size) &&
                                        all_finite(g, t.queries, h.value_size));
  const std::int64_t head_width = round_up(h.head_size, kLanes);
  const std::int64_t value_width = round_up(h.value_size, kLanes);
  const FlashRows k_whole = whole_registers(k, t.keys, h.head_size, b.k_rows);
  const FlashRows q_whole = whole_registers(q, t.queries, h.head_size, b.q_rows);
  const FlashRows g_whole = whole_registers(g, t.queries, h.value_size, b.dout_rows);
  product_masked({h.dropout ? b.dropped : b.weights, t.stride, 1, g_whole.data, g_whole.stride,
                  to.dv, to.dv_stride, t.queries, nullptr, nullptr, to.add},
                 t.keys, value_width / kLanes, mask.of_key, finite);
  product_masked({b.score_gradients, t.stride, 1, q_whole.data, q_whole.stride, to.dk, to.dk_stride,
                  t.queries, nullptr, nullptr, to.add},
                 t.keys, head_width / kLanes, mask.of_key, finite);
  const bool own_dq = b.dq != h.dq.data;
  const std::int64_t dq_stride = own_dq ? head_width : h.dq.stride;
  product_masked(
      {b.score_gradients, 1, t.stride, k_whole.data, k_whole.stride,
       b.dq + t.first_query * dq_stride, dq_stride, t.keys, nullptr, nullptr, !only_block},
      t.queries, head_width / kLanes, mask.of_query, finite);
  return true;
}

QKV_INLINE void zero_rows(float* rows, std::int64_t stride, std::int64_t count,
                          std::int64_t depth) {
  for (std::int64_t m = 0; m < count; ++m)
    for (std::int64_t d = 0; d < depth; d += kLanes)
      store(rows + m * stride + d, zero(), first_lanes(depth - d));
}

QKV_INLINE void move_rows(const float* from, std::int64_t from_stride, FlashOutput to,
                          std::int64_t count, std::int64_t depth, bool add) {
  for (std::int64_t m = 0; m < count; ++m)
    for (std::int64_t d = 0; d < depth; d += kLanes) {
      const Mask lanes = first_lanes(depth - d);
      const F32 x = load(from + m * from_stride + d);
      float* at = to.data + m * to.stride + d;
      store(at, add ? load(at, lanes) + x : x, lanes);
    }
}

// All of one (sequence, query head).
[[gnu::noinline]] static void backward_head(const FlashHead& h) {
  const BackwardBuffers b = backward_buffers(h);
  const std::int64_t head_width = round_up(h.head_size, kLanes);
  const std::int64_t value_width = round_up(h.value_size, kLanes);
  const bool only_block = h.keys <= kBackwardKeys;
  const std::int64_t dq_stride = b.in_place ? h.dq.stride : head_width;
  prepare_queries(h, b, !only_block);
  // Tiles that are skipped leave dq alone.
  zero_rows(b.dq, dq_stride, h.queries, b.in_place ? h.head_size : head_width);
  for (std::int64_t key = 0; key < h.keys; key += kBackwardKeys) {
    const std::int64_t keys = smaller(kBackwardKeys, h.keys - key);
    BlockOutputs to = {b.dk, b.dv, head_width, value_width, false};
    const FlashOutput dk = {h.dk.data + key * h.dk.stride, h.dk.stride};
    const FlashOutput dv = {h.dv.data + key * h.dv.stride, h.dv.stride};
    if (b.in_place) to = {dk.data, dv.data, dk.stride, dv.stride, h.add_to_kv};
    for (std::int64_t first = 0; first < h.queries; first += h.tile) {
      const std::int64_t count = smaller(h.tile, h.queries - first);
      const FlashTile tile = {first, count, key, keys, round_up(count, kLanes)};
      if (backward_tile(h, b, tile, to, only_block)) to.add = true;
    }
    if (!to.add) {  // no query sees the block
      zero_rows(to.dk, to.dk_stride, keys, b.in_place ? h.head_size : head_width);
      zero_rows(to.dv, to.dv_stride, keys, b.in_place ? h.value_size : value_width);
    }
    if (!b.in_place) {
      move_rows(b.dk, head_width, dk, keys, h.head_size, h.add_to_kv);
      move_rows(b.dv, value_width, dv, keys, h.value_size, h.add_to_kv);
    }
  }
  if (!b.in_place) move_rows(b.dq, dq_stride, h.dq, h.queries, h.head_size, false);
}

}  // namespace qkv::inline v0::kernels::QKV_ISA
