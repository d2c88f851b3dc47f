// Flash attention on bf16 products, backward: lanes are queries, S^T = K Q^T, dP^T = V dO^T, dV =
// P^T dO, dK = dS^T Q, dQ^T = K^T dS^T. What happens between the products is that of fp32.
#pragma once

#include "kernels/simd/attention_pairs_gradient.h"

namespace qkv::inline v0::kernels::QKV_ISA {

// A block of keys that is packed, against the tiles of a run.
struct PairKeyBlock {
  std::int64_t key, count;
  bool finite, only, begun;  // begun: dk and dv hold something
};

// What infinity and NaN in q, k and dout add to the last three products of a tile.
struct GradientProducts {
  Product dv, dk, dq;
};
[[gnu::noinline]] static void add_special_gradients(const FlashHead& h,
                                                    const PairBackwardBuffers& b,
                                                    const FlashTile& t, GradientProducts to) {
  const std::int64_t rows = 2 * pair_rows(h.tile), padded = round_up(t.keys, kPairBlock);
  pack_row_pairs(rows_from(h.narrow_dout, t.first_query), {t.queries, h.value_size, rows},
                 b.specials, b.v_width);
  leave_specials(b.specials, rows / 2 * b.v_width);
  to.dv.b = b.specials;
  add_specials(to.dv, t.keys, b.v_width / kLanes);
  pack_row_pairs(rows_from(h.narrow_q, t.first_query), {t.queries, h.head_size, rows}, b.specials,
                 b.q_width);
  leave_specials(b.specials, rows / 2 * b.q_width);
  to.dk.b = b.specials;
  add_specials(to.dk, t.keys, b.q_width / kLanes);
  pack_row_pairs(rows_from(h.narrow_k, t.first_key), {t.keys, h.head_size, padded}, b.rows,
                 b.q_width);
  leave_specials(b.rows, padded / 2 * b.q_width);
  transpose_words({b.rows, b.q_width, padded / 2, b.q_width}, b.specials, kBackwardKeys / 2);
  to.dq.a = b.specials;
  add_specials(to.dq, h.head_size, t.stride / kLanes);
}

// One key block against one query tile.
template <class Engine>
[[gnu::noinline]] static void pair_backward_tile(Engine& engine, const FlashHead& h,
                                                 PairBackwardBuffers& b, const FlashTile& t,
                                                 PairKeyBlock& block) {
  bool skip = false;
  const TileMask mask = tile_mask(h, t, b.scores.bias, &skip);
  if (skip) return;
  const std::int64_t at = t.first_query - b.scores.first, tile = at / h.tile, width = t.stride;
  pairs_by_columns(engine,
                   {b.k, b.q_words, 1, b.q + at * b.q_words, width, b.scores.weights, width,
                    engine_words<Engine>(h.head_size), nullptr, nullptr, false},
                   t.keys, width, mask.of_key);
  pairs_by_columns(engine,
                   {b.v, b.v_words, 1, b.dout + at * b.v_words, width, b.scores.score_gradients,
                    width, engine_words<Engine>(h.value_size), nullptr, nullptr, false},
                   t.keys, width, mask.of_key);
  pair_gradients(h, t, mask, b.scores, block.only);
  pack_gradients(t, mask, h.dropout ? b.scores.dropped : b.scores.weights, b.scores.score_gradients,
                 b.gradients);
  const std::int64_t row = tile * pair_rows(h.tile);
  const std::int64_t depth = engine_words<Engine>(t.queries);
  const Product dv = {b.gradients.drops,
                      b.gradients.stride,
                      1,
                      b.dout_pairs + row * b.v_width,
                      b.v_width,
                      b.dv,
                      b.v_width,
                      depth,
                      nullptr,
                      nullptr,
                      block.begun};
  const Product dk = {b.gradients.rows,
                      b.gradients.stride,
                      1,
                      b.q_pairs + row * b.q_width,
                      b.q_width,
                      b.dk,
                      b.q_width,
                      depth,
                      nullptr,
                      nullptr,
                      block.begun};
  const Product dq = {b.k_columns, kBackwardKeys / 2,
                      1,           b.gradients.pairs,
                      width,       b.dq + at * b.q_width,
                      width,       engine_words<Engine>(t.keys),
                      nullptr,     nullptr,
                      true};
  block.begun = true;
  pairs_by_depth_of_rows(engine, dv, t.keys, b.v_width, mask.of_key);
  pairs_by_depth_of_rows(engine, dk, t.keys, b.q_width, mask.of_key);
  pairs_by_depth_of_columns(engine, dq, h.head_size, width, mask.of_query);
  if (!block.finite || b.finite[tile] == 0) add_special_gradients(h, b, t, {dv, dk, dq});
}

// Rows times scale to rows of the caller.
QKV_INLINE void give_rows(const float* from, std::int64_t stride, FlashOutput to, PackedRows size,
                          float scale, bool add) {
  for (std::int64_t m = 0; m < size.rows; ++m)
    for (std::int64_t d = 0; d < size.depth; d += kLanes) {
      const Mask lanes = first_lanes(size.depth - d);
      F32 x = from ? load(from + m * stride + d) * set(scale) : zero();
      float* at = to.data + m * to.stride + d;
      if (add) x = load(at, lanes) + x;
      store(at, x, lanes);
    }
}

// One block of keys against the queries of the run.
template <class Engine>
[[gnu::noinline]] static void pair_backward_block(Engine& engine, const FlashHead& h,
                                                  PairBackwardBuffers& b, FlashRange queries,
                                                  FlashRange keys) {
  const std::int64_t key = keys.begin, count = keys.end - keys.begin;
  const RowRange seen = keys_of_queries(h, queries.begin, queries.end - queries.begin);
  PairKeyBlock block = {key, count, true, h.keys <= kBackwardKeys, false};
  if (key < seen.end && keys.end > seen.begin) {
    block.finite = pack_key_block(h, b, key, count);
    for (std::int64_t first = queries.begin; first < queries.end; first += h.tile) {
      const std::int64_t rows = smaller(h.tile, queries.end - first);
      pair_backward_tile(engine, h, b, {first, rows, key, count, round_up(rows, Engine::kColumns)},
                         block);
    }
  }
  if (!block.begun && h.add_to_kv) return;
  const FlashOutput dk = {h.dk.data + key * h.dk.stride, h.dk.stride};
  const FlashOutput dv = {h.dv.data + key * h.dv.stride, h.dv.stride};
  give_rows(block.begun ? b.dk : nullptr, b.q_width, dk, {count, h.head_size, 0}, h.scale,
            h.add_to_kv);
  give_rows(block.begun ? b.dv : nullptr, b.v_width, dv, {count, h.value_size, 0}, 1, h.add_to_kv);
}

// See FlashTable::backward.
template <class Engine>
[[gnu::noinline]] static void pair_backward(const FlashHead& h, FlashRange queries,
                                            FlashRange keys) {
  Engine engine;
  PairBackwardBuffers b = pair_backward_buffers<Engine>(h, queries);
  const std::int64_t count = queries.end - queries.begin;
  prepare_pairs<Engine>(h, b, count, h.keys > kBackwardKeys);
  engine.begin();
  std::int64_t part = keys.begin;
  do {
    const std::int64_t part_end = smaller(part + h.part, keys.end);
    for (std::int64_t i = 0; i < round_up(count, h.tile) * b.q_width; i += kLanes)
      store(b.dq + i, zero());
    for (std::int64_t key = part; key < part_end; key += kBackwardKeys)
      pair_backward_block(engine, h, b, queries, {key, smaller(key + kBackwardKeys, part_end)});
    for (std::int64_t at = 0; at < count; at += h.tile) {
      const std::int64_t rows = smaller(h.tile, count - at);
      const std::int64_t width = round_up(rows, Engine::kColumns);
      transpose_words({b.dq + at * b.q_width, width, b.q_width, width}, b.rows, b.q_width);
      give_rows(b.rows, b.q_width, {h.dq.data + at * h.dq.stride, h.dq.stride},
                {rows, h.head_size, 0}, h.scale, part > keys.begin);
    }
    part = part_end;
  } while (part < keys.end);
  engine.end();
}

}  // namespace qkv::inline v0::kernels::QKV_ISA
