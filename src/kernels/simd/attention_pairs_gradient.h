// Flash attention on bf16 products, backward: what a run of queries keeps in scratch memory, and
// how operands get there.
#pragma once

#include "kernels/simd/attention_engine.h"
#include "kernels/simd/attention_gradient.h"
#include "kernels/simd/attention_pairs_forward.h"

namespace qkv::inline v0::kernels::QKV_ISA {

// A block's gradients of scores as the products take them.
struct PairGradients {
  float* rows;   // dS: [kBackwardKeys][tile / 2], pairs of queries
  float* drops;  // likewise the weights after dropout
  float* pairs;  // dS: [kBackwardKeys / 2][tile], pairs of keys
  std::int64_t stride;
};

// Scratch memory of a run of queries. Widths: of D and Dv in words and in numbers, as packed.
struct PairBackwardBuffers {
  BackwardBuffers scores;  // lse to bias: those of fp32
  std::int64_t q_words, v_words, q_width, v_width;
  float *q, *dout;              // of every tile: [D / 2][tile], [Dv / 2][tile]
  float *q_pairs, *dout_pairs;  // likewise [tile / 2][D], [tile / 2][Dv], pairs of queries
  float* finite;                // of every tile: whether both are, 1 or 0
  float *rows, *specials;       // on their way
  PairGradients gradients;
  float *k, *v;      // [kBackwardKeys][D / 2], [kBackwardKeys][Dv / 2]
  float* k_columns;  // [D][kBackwardKeys / 2], pairs of keys
  float *dk, *dv;    // [kBackwardKeys][width]
  float* dq;         // of every tile: [D][tile]
  std::int64_t floats;
};

QKV_INLINE std::int64_t pair_rows(std::int64_t tile) { return round_up(tile, kPairBlock) / 2; }

template <class Engine>
QKV_INLINE PairBackwardBuffers pair_backward_buffers(const FlashHead& h, FlashRange queries) {
  PairBackwardBuffers b{};
  b.q_words = round_up(engine_words<Engine>(h.head_size), kPairLanes);
  b.v_words = round_up(engine_words<Engine>(h.value_size), kPairLanes);
  b.q_width = round_up(h.head_size, kPairLanes);
  b.v_width = round_up(h.value_size, kPairLanes);
  const std::int64_t tile = h.tile, padded = round_up(queries.end - queries.begin, tile);
  const std::int64_t tiles = padded / tile, block = kBackwardKeys * tile;
  ScratchCutter take = {h.scratch};
  b.scores.first = queries.begin;
  b.scores.early_scale = 1;
  b.scores.lse = take(padded);
  b.scores.delta = take(padded);
  b.scores.weights = take(block);
  b.scores.dropped = take(block);
  b.scores.score_gradients = take(block);
  b.scores.cap_slopes = take(block);
  b.scores.bias = take(block);
  b.q = take(padded * b.q_words);
  b.dout = take(padded * b.v_words);
  b.q_pairs = take(tiles * pair_rows(tile) * b.q_width);
  b.dout_pairs = take(tiles * pair_rows(tile) * b.v_width);
  b.finite = take(tiles);
  b.rows = take(larger(tile, kBackwardKeys) *
                larger(larger(b.q_words, b.v_words), larger(b.q_width, b.v_width)));
  b.specials = take(larger(pair_rows(tile), kBackwardKeys / 2) * larger(b.q_width, b.v_width));
  b.gradients.stride = pair_rows(tile);
  b.gradients.rows = take(kBackwardKeys * pair_rows(tile));
  b.gradients.drops = take(kBackwardKeys * pair_rows(tile));
  b.gradients.pairs = take(block / 2);
  b.k = take(kBackwardKeys * b.q_words);
  b.v = take(kBackwardKeys * b.v_words);
  b.k_columns = take(kBackwardKeys / 2 * b.q_width);
  b.dk = take(kBackwardKeys * b.q_width);
  b.dv = take(kBackwardKeys * b.v_width);
  b.dq = take(padded * b.q_width);
  b.floats = take.used;
  return b;
}
template <class Engine>
static std::int64_t pair_backward_scratch(const FlashHead& head) {
  FlashHead at_zero = head;
  at_zero.scratch = nullptr;
  const std::int64_t queries = smaller(head.queries, backward_queries(head.tile));
  return pair_backward_buffers<Engine>(at_zero, {0, queries}).floats;
}

// One operand of a tile of queries in both of its forms; whether it is finite.
struct QueryForms {
  NarrowRows from;
  std::int64_t depth, words, width;
  float *columns, *pairs;
};
QKV_INLINE bool pack_query_forms(const QueryForms& f, const PairBackwardBuffers& b,
                                 std::int64_t count, std::int64_t width, std::int64_t tile) {
  pack_rows(f.from, {count, f.depth, width}, b.rows, f.words);
  transpose_words({b.rows, f.words, width, f.words}, f.columns, width);
  pack_row_pairs(f.from, {count, f.depth, 2 * pair_rows(tile)}, f.pairs, f.width);
  return take_specials_out(f.pairs, pair_rows(tile) * f.width);
}

// Packs the queries of the run; lse, and delta = dout . out - dlse, or -dlse alone.
template <class Engine>
[[gnu::noinline]] static void prepare_pairs(const FlashHead& h, const PairBackwardBuffers& b,
                                            std::int64_t count, bool with_delta) {
  const std::int64_t first = b.scores.first, padded = round_up(count, h.tile);
  for (std::int64_t at = 0; at < count; at += h.tile) {
    const std::int64_t rows = smaller(h.tile, count - at), tile = at / h.tile;
    const std::int64_t width = round_up(rows, Engine::kColumns);
    const bool q =
        pack_query_forms({rows_from(h.narrow_q, first + at), h.head_size, b.q_words, b.q_width,
                          b.q + at * b.q_words, b.q_pairs + tile * pair_rows(h.tile) * b.q_width},
                         b, rows, width, h.tile);
    const bool dout = pack_query_forms(
        {rows_from(h.narrow_dout, first + at), h.value_size, b.v_words, b.v_width,
         b.dout + at * b.v_words, b.dout_pairs + tile * pair_rows(h.tile) * b.v_width},
        b, rows, width, h.tile);
    b.finite[tile] = q && dout ? 1 : 0;
  }
  for (std::int64_t i = 0; i < padded; i += kLanes) {
    const F32 lse = load(h.lse + first + i, first_lanes(count - i));
    store(b.scores.lse + i, select(lse == minus_infinity(), zero(), lse * set(kLog2E)));
    const F32 dlse = h.dlse ? load(h.dlse + first + i, first_lanes(count - i)) : zero();
    store(b.scores.delta + i, zero() - dlse);
  }
  for (std::int64_t i = 0; with_delta && i < count; ++i) {
    const NarrowRows g = rows_from(h.narrow_dout, first + i), o = rows_from(h.narrow_o, first + i);
    F32 total = zero();
    for (std::int64_t d = 0; d < h.value_size; d += kLanes)
      total = fma(widen(g.type, load_narrow(g.data + d, h.value_size - d)),
                  widen(o.type, load_narrow(o.data + d, h.value_size - d)), total);
    b.scores.delta[i] += sum(total);
  }
}

// A block of keys as the products take it; whether its keys are finite.
QKV_INLINE bool pack_key_block(const FlashHead& h, const PairBackwardBuffers& b, std::int64_t key,
                               std::int64_t count) {
  const NarrowRows k = rows_from(h.narrow_k, key);
  const std::int64_t padded = round_up(count, kPairBlock);
  pack_rows(k, {count, h.head_size, padded}, b.k, b.q_words);
  pack_rows(rows_from(h.narrow_v, key), {count, h.value_size, padded}, b.v, b.v_words);
  pack_row_pairs(k, {count, h.head_size, padded}, b.rows, b.q_width);
  const bool finite = take_specials_out(b.rows, padded / 2 * b.q_width);
  transpose_words({b.rows, b.q_width, padded / 2, b.q_width}, b.k_columns, kBackwardKeys / 2);
  return finite;
}

// Numbers of a tile in fp32, zero where hidden or behind the queries. kWhole: there is nothing of
// either.
template <bool kWhole>
struct VisibleScores {
  const FlashTile& t;
  const TileMask& mask;

  QKV_INLINE F32 at(const float* scores, std::int64_t r, std::int64_t lane) const {
    if (kWhole) return load(scores + r * t.stride + lane);
    if (lane >= t.stride) return zero();
    const RowRange range = rows_of_register(mask, lane, t.keys);
    if (r < range.begin || r >= range.end) return zero();
    return keep(first_lanes(t.queries - lane), load(scores + r * t.stride + lane));
  }
};

// Weights and gradients of scores to the operands of the last three products.
template <bool kWhole>
[[gnu::noinline]] static void pack_scores(const FlashTile& t, const TileMask& mask,
                                          const float* weights, const float* gradients,
                                          const PairGradients& to) {
  const VisibleScores<kWhole> visible = {t, mask};
  const std::int64_t padded = round_up(t.keys, kPairBlock);
  for (std::int64_t lane = 0; lane < 2 * to.stride; lane += 2 * kLanes)
    for (std::int64_t r = 0; r < padded; r += 2) {
      F32 low[2], high[2];
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i) {
        const F32 w0 = visible.at(weights, r + i, lane);
        const F32 w1 = visible.at(weights, r + i, lane + kLanes);
        low[i] = visible.at(gradients, r + i, lane);
        high[i] = visible.at(gradients, r + i, lane + kLanes);
        const std::int64_t at = (r + i) * to.stride + lane / 2;
        store(to.drops + at, join_numbers(w0, w1));
        store(to.rows + at, join_numbers(low[i], high[i]));
      }
      float* pairs = to.pairs + r / 2 * t.stride + lane;
      if (lane < t.stride) store(pairs, pair_up(low[0], low[1]));
      if (lane + kLanes < t.stride) store(pairs + kLanes, pair_up(high[0], high[1]));
    }
}

QKV_INLINE void pack_gradients(const FlashTile& t, const TileMask& mask, const float* weights,
                               const float* gradients, const PairGradients& to) {
  const bool whole = !mask.partial && t.queries == 2 * to.stride && t.keys % kPairBlock == 0;
  if (whole)
    pack_scores<true>(t, mask, weights, gradients, to);
  else
    pack_scores<false>(t, mask, weights, gradients, to);
}

// Products to weights and gradients of scores, in fp32. `only`: the tile holds all keys.
[[gnu::noinline]] static void pair_gradients(const FlashHead& h, const FlashTile& t,
                                             const TileMask& mask, BackwardBuffers& b, bool only) {
  const bool plain = scores_are_products(h, mask);
  b.score_factor = plain ? h.query_scale : 1.0f;
  for (std::int64_t lane = 0; lane < t.stride; lane += kLanes) {
    const RowRange range = rows_of_register(mask, lane, t.keys);
    for (std::int64_t r = range.begin; !plain && r < range.end; ++r) {
      float* at = b.weights + r * t.stride + lane;
      store(at, load(at) * set(h.query_scale));
    }
    finish_scores(h, t, mask, b.weights, b.cap_slopes, lane, range);
    if (h.dropout || only)
      gradient_register_in_passes(h, t, b, range, lane, only);
    else
      gradient_register(t, b, range, lane);
  }
  if (h.add_bias_gradient) give_to_bias(h, t, b, mask);
  if (h.softcap != 0) finish_gradients(h, t, b, mask, 1.0f);
}

}  // namespace qkv::inline v0::kernels::QKV_ISA
