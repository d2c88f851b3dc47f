// Flash attention, backward: for a run of queries the key blocks in order; per block the query
// tiles that see it. Weights are computed again from lse.
#pragma once

#include "kernels/simd/attention_gradient.h"

namespace qkv::inline v0::kernels::QKV_ISA {

// Transposes q and dout of every tile, and prepares lse and delta = dout . out - dlse, or -dlse
// alone where the tile sees to the rest (with_delta false). The scale of ds, if early, is carried
// by the transposed dout and by delta.
QKV_INLINE void prepare_queries(const FlashHead& h, const BackwardBuffers& b, std::int64_t count,
                                bool with_delta) {
  const FlashRows q = rows_from(h.q, b.first), dout = rows_from(h.dout, b.first);
  const std::int64_t padded = round_up(count, h.tile);
  for (std::int64_t first = 0; first < count; first += h.tile) {
    const std::int64_t queries = smaller(h.tile, count - first), width = round_up(queries, kLanes);
    pack_transposed(rows_from(q, first), queries, h.head_size, h.query_scale,
                    b.q + first * h.head_size, width);
    pack_transposed(rows_from(dout, first), queries, h.value_size, b.early_scale,
                    b.dout + first * h.value_size, width);
  }
  for (std::int64_t i = 0; i < padded; i += kLanes) {
    const F32 lse = load(h.lse + b.first + i, first_lanes(count - i));
    store(b.lse + i, select(lse == minus_infinity(), zero(), lse * set(kLog2E)));
  }
  if (!b.in_place) {
    copy_rows(q, count, h.head_size, b.q_rows);
    copy_rows(dout, count, h.value_size, b.dout_rows);
  }
  for (std::int64_t i = 0; i < padded; i += kLanes) {
    const F32 dlse = h.dlse ? load(h.dlse + b.first + i, first_lanes(count - i)) : zero();
    store(b.delta + i, zero() - dlse * set(b.early_scale));
  }
  if (!with_delta) return;
  const float* out = h.out.data + b.first * h.out.stride;
  for (std::int64_t i = 0; i < count; ++i) {
    F32 total = zero();
    for (std::int64_t d = 0; d < h.value_size; d += kLanes) {
      const Mask lanes = first_lanes(h.value_size - d);
      total = fma(load(dout.data + i * dout.stride + d, lanes),
                  load(out + i * h.out.stride + d, lanes), total);
    }
    b.delta[i] += sum(total) * b.early_scale;
  }
}

// A key block: its rows, and where its gradients go.
struct KeyBlock {
  FlashRows k, v;
  FlashOutput dk, dv, dq;  // dq: of query BackwardBuffers::first
  bool add;                // to dk and dv
  bool only;               // the head has no other block: dq is overwritten, delta comes from here
};

// One key block against one query tile: adds to dq, and to dk, dv unless it is their first tile.
// False if no query sees the block.
[[gnu::noinline]] static bool backward_tile(const FlashHead& h, const BackwardBuffers& b,
                                            const FlashTile& t, const KeyBlock& block) {
  bool skip = false;
  const TileMask mask = tile_mask(h, t, b.bias, &skip);
  if (skip) return false;
  const std::int64_t vectors = t.stride / kLanes;
  const std::int64_t head_width = round_up(h.head_size, kLanes);
  const std::int64_t value_width = round_up(h.value_size, kLanes);
  const std::int64_t first = t.first_query - b.first;
  const FlashRows q = rows_from(b.in_place ? h.q : FlashRows{b.q_rows, head_width}, first);
  const FlashRows g = rows_from(b.in_place ? h.dout : FlashRows{b.dout_rows, value_width}, first);
  product_by_columns({block.k.data, block.k.stride, 1, b.q + first * h.head_size, t.stride,
                      b.weights, t.stride, h.head_size, nullptr, nullptr, false},
                     t.keys, vectors, mask.of_key);
  product_by_columns({block.v.data, block.v.stride, 1, b.dout + first * h.value_size, t.stride,
                      b.score_gradients, t.stride, h.value_size, nullptr, nullptr, false},
                     t.keys, vectors, mask.of_key);
  for (std::int64_t lane = 0; lane < t.stride; lane += kLanes) {
    const RowRange range = rows_of_register(mask, lane, t.keys);
    finish_scores(h, t, mask, b.weights, b.cap_slopes, lane, range);
    if (h.dropout || block.only)
      gradient_register_in_passes(h, t, b, range, lane, block.only);
    else
      gradient_register(t, b, range, lane);
    if (mask.partial) {
      zero_beside(h.dropout ? b.dropped : b.weights, t.stride, lane, range, t.keys);
      zero_beside(b.score_gradients, t.stride, lane, range, t.keys);
    }
  }
  if (h.add_bias_gradient) give_to_bias(h, t, b, mask);
  if (h.softcap != 0 || h.add_bias_gradient) finish_gradients(h, t, b, mask, h.scale);
  const bool finite = !mask.partial || (all_finite(block.k, t.keys, h.head_size) &&
                                        all_finite(q, t.queries, h.head_size) &&
                                        all_finite(g, t.queries, h.value_size));
  product_masked({h.dropout ? b.dropped : b.weights, t.stride, 1, g.data, g.stride, block.dv.data,
                  block.dv.stride, t.queries, nullptr, nullptr, block.add},
                 t.keys, value_width / kLanes, mask.of_key, finite);
  product_masked({b.score_gradients, t.stride, 1, q.data, q.stride, block.dk.data, block.dk.stride,
                  t.queries, nullptr, nullptr, block.add},
                 t.keys, head_width / kLanes, mask.of_key, finite);
  product_masked({b.score_gradients, 1, t.stride, block.k.data, block.k.stride,
                  block.dq.data + first * block.dq.stride, block.dq.stride, t.keys, nullptr,
                  nullptr, !block.only},
                 t.queries, head_width / kLanes, mask.of_query, finite);
  return true;
}

QKV_INLINE void zero_rows(FlashOutput rows, std::int64_t count, std::int64_t depth) {
  for (std::int64_t m = 0; m < count; ++m)
    for (std::int64_t d = 0; d < depth; d += kLanes)
      store(rows.data + m * rows.stride + d, zero(), first_lanes(depth - d));
}

QKV_INLINE void move_rows(FlashOutput from, FlashOutput to, std::int64_t count, std::int64_t depth,
                          bool add) {
  for (std::int64_t m = 0; m < count; ++m)
    for (std::int64_t d = 0; d < depth; d += kLanes) {
      const Mask lanes = first_lanes(depth - d);
      const F32 x = load(from.data + m * from.stride + d);
      float* at = to.data + m * to.stride + d;
      store(at, add ? load(at, lanes) + x : x, lanes);
    }
}

QKV_INLINE FlashOutput output_from(FlashOutput rows, std::int64_t first) {
  return {rows.data + first * rows.stride, rows.stride};
}

// One block of keys against the queries: adds to dq, which is of query b.first.
[[gnu::noinline]] static void backward_block(const FlashHead& h, const BackwardBuffers& b,
                                             FlashRange queries, FlashRange keys, FlashOutput dq) {
  const std::int64_t key = keys.begin, count = keys.end - keys.begin;
  const FlashOutput dk = output_from(h.dk, key), dv = output_from(h.dv, key);
  const RowRange seen = keys_of_queries(h, queries.begin, queries.end - queries.begin);
  KeyBlock block = {rows_from(h.k, key), rows_from(h.v, key),    dk, dv, dq,
                    h.add_to_kv,         h.keys <= kBackwardKeys};
  bool begun = false;
  if (key < seen.end && keys.end > seen.begin) {
    if (!b.in_place) {
      block.k = copy_rows(block.k, count, h.head_size, b.k_rows);
      block.v = copy_rows(block.v, count, h.value_size, b.v_rows);
      block.dk = {b.dk, round_up(h.head_size, kLanes)};
      block.dv = {b.dv, round_up(h.value_size, kLanes)};
      block.add = false;
    }
    for (std::int64_t first = queries.begin; first < queries.end; first += h.tile) {
      const std::int64_t width = smaller(h.tile, queries.end - first);
      const FlashTile tile = {first, width, key, count, round_up(width, kLanes)};
      if (backward_tile(h, b, tile, block)) begun = block.add = true;
    }
  }
  if (!begun) {  // no query sees the block
    if (h.add_to_kv) return;
    zero_rows(dk, count, h.head_size);
    zero_rows(dv, count, h.value_size);
  } else if (!b.in_place) {
    move_rows(block.dk, dk, count, h.head_size, h.add_to_kv);
    move_rows(block.dv, dv, count, h.value_size, h.add_to_kv);
  }
}

// See FlashTable. A key belongs to one part alone, so dk and dv know nothing of them.
[[gnu::noinline]] static void backward_range(const FlashHead& h, FlashRange queries,
                                             FlashRange keys) {
  const BackwardBuffers b = backward_buffers(h, queries);
  const std::int64_t count = queries.end - queries.begin;
  const FlashOutput dq = b.in_place ? h.dq : FlashOutput{b.dq, round_up(h.head_size, kLanes)};
  const bool only = h.keys <= kBackwardKeys;
  prepare_queries(h, b, count, !only);
  const bool may_skip = h.keys == 0 || h.left >= 0 || h.right >= 0 || h.fill_bias;
  std::int64_t part = keys.begin;
  do {
    const std::int64_t part_end = smaller(part + h.part, keys.end);
    if (!only || may_skip) zero_rows(dq, count, h.head_size);
    for (std::int64_t key = part; key < part_end; key += kBackwardKeys)
      backward_block(h, b, queries, {key, smaller(key + kBackwardKeys, part_end)}, dq);
    if (!b.in_place) move_rows(dq, h.dq, count, h.head_size, part > keys.begin);
    part = part_end;
  } while (part < keys.end);
}

}  // namespace qkv::inline v0::kernels::QKV_ISA
