// Flash attention on bf16 products, forward: S^T = K Q^T and O^T = V^T P^T, lanes are queries. The
// engine of a product is a template parameter, everything else is that of fp32.
#pragma once

#include "kernels/simd/attention_pairs_buffers.h"
#include "kernels/simd/attention_softmax.h"

namespace qkv::inline v0::kernels::QKV_ISA {

// A query tile on its way through the keys.
struct PairTile {
  std::int64_t first, count, width;
  float *q, *out;  // its own of PairForwardBuffers
  bool begun;      // out holds something
  RunningSoftmax state;
};

// Queries [first, first + count) as tile `index` of those that go along; lanes behind them are
// zero.
template <class Engine>
QKV_INLINE void begin_tile(const FlashHead& h, const PairForwardBuffers& b, std::int64_t index,
                           RowRange queries, PairTile& tile) {
  tile.first = queries.begin;
  tile.count = queries.end - queries.begin;
  tile.width = round_up(tile.count, Engine::kColumns);
  tile.q = b.q + index * b.packed_words * h.tile;
  tile.out = b.out + index * b.values * h.tile;
  tile.begun = false;
  for (std::int64_t lane = 0; lane < tile.width; lane += kLanes) {
    store(tile.state.maximum + lane, minus_infinity());
    store(tile.state.sum + lane, zero());
  }
  pack_rows(rows_from(h.narrow_q, tile.first), {tile.count, h.head_size, tile.width}, b.rows,
            b.packed_words);
  transpose_words({b.rows, b.packed_words, tile.width, b.packed_words}, tile.q, tile.width);
}

// Rows of a register's weights in pairs; what is outside of the range is zero.
template <class Weight>
QKV_INLINE void store_pairs(RowRange range, std::int64_t rows, float* words, std::int64_t stride,
                            const Weight& weight) {
  std::int64_t r = 0;
  for (; r + 1 < range.begin; r += 2) store(words + r / 2 * stride, zero());
  for (; r < range.end; r += 2) {
    const F32 low = r >= range.begin ? weight(r) : zero();
    const F32 high = r + 1 < range.end ? weight(r + 1) : zero();
    store(words + r / 2 * stride, pair_up(low, high));
  }
  for (; r < rows; r += 2) store(words + r / 2 * stride, zero());
}

// Whether nothing but the scale happens to products: then it is left to the exponent. Hidden scores
// are -inf, which another factor would not keep.
QKV_INLINE bool scores_are_products(const FlashHead& h, const TileMask& mask) {
  return h.softcap == 0 && h.slope == 0 && !mask.bias && h.query_scale > 0;
}

// Weights of a tile of scores, rounded to bf16; their sums are those of fp32.
[[gnu::noinline]] static void pair_weights(const FlashHead& h, const FlashTile& t,
                                           const TileMask& mask, const PairForwardBuffers& b,
                                           RunningSoftmax& state) {
  const std::int64_t padded = round_up(t.keys, kPairBlock);
  const bool plain = scores_are_products(h, mask);
  const F32 factor = set(plain ? h.query_scale : 1.0f);
  for (std::int64_t lane = 0; lane < t.stride; lane += kLanes) {
    const RowRange range = rows_of_register(mask, lane, t.keys);
    float* scores = b.scores + lane;
    if (!plain)
      for (std::int64_t r = range.begin; r < range.end; ++r)
        store(scores + r * t.stride, load(scores + r * t.stride) * set(h.query_scale));
    finish_scores(h, t, mask, b.scores, nullptr, lane, range);
    if (h.dropout) {
      softmax_register(b.scores, t.stride, range, factor, state, lane);
      drop_register(h, t, b.scores, range, lane);
      store_pairs(range, padded, b.weights + lane, t.stride,
                  [&](std::int64_t r) QKV_BODY { return load(scores + r * t.stride); });
      continue;
    }
    SoftmaxShift s = shift_register(b.scores, t.stride, range, factor, state, lane);
    store_pairs(range, padded, b.weights + lane, t.stride, [&](std::int64_t r) QKV_BODY {
      const F32 weight = exp2_weight(fma(load(scores + r * t.stride), factor, s.shift));
      s.sum = s.sum + weight;
      return weight;
    });
    store(state.sum + lane, s.sum);
  }
}

QKV_INLINE bool all_ones(const float* x, std::int64_t count) {
  Mask other = first_lanes(0);
  for (std::int64_t i = 0; i < count; i += kLanes) other = other | (load(x + i) != set(1.0f));
  return !any(other);
}

// Rows of fp32 times scale[row] to rows of bf16.
QKV_INLINE void write_narrow(const float* from, std::int64_t stride, const FlashHead& h,
                             std::int64_t first, std::int64_t count, const float* scale) {
  for (std::int64_t m = 0; m < count; ++m)
    for (std::int64_t d = 0; d < h.value_size; d += kLanes)
      store_narrow(h.narrow_out.data + (first + m) * h.narrow_out.stride + d,
                   narrow_brain(load(from + m * stride + d) * set(scale[m])), h.value_size - d);
}

// Queries that see no key.
QKV_INLINE void write_empty(const FlashHead& h, std::int64_t first, std::int64_t count,
                            const PairForwardBuffers& b) {
  alignas(64) float zeros[kFlashQueries] = {};
  for (std::int64_t i = 0; i < count * b.values; i += kLanes) store(b.rows + i, zero());
  write_narrow(b.rows, b.values, h, first, count, zeros);
  for (std::int64_t m = first; m < first + count; ++m) h.lse[m] = -__builtin_inff();
}

// A tile against the keys that are packed.
template <class Engine>
[[gnu::noinline]] static void pair_forward_keys(Engine& engine, const FlashHead& h,
                                                const PairForwardBuffers& b, RowRange packed,
                                                PairTile& q) {
  const RowRange keys = keys_of_queries(h, q.first, q.count);
  const std::int64_t width = q.width, end = smaller(keys.end, packed.end);
  for (std::int64_t key = larger(keys.begin / kForwardKeys * kForwardKeys, packed.begin); key < end;
       key += kForwardKeys) {
    const FlashTile tile = {q.first, q.count, key, smaller(kForwardKeys, keys.end - key), width};
    bool skip = false;
    const TileMask mask = tile_mask(h, tile, b.bias, &skip);
    if (skip) continue;
    const std::int64_t row = key - packed.begin;
    pairs_by_columns(engine,
                     {b.k + row * b.packed_words, b.packed_words, 1, q.q, width, b.scores, width,
                      b.words, nullptr, nullptr, false},
                     tile.keys, width, mask.of_key);
    pair_weights(h, tile, mask, b, q.state);
    const bool rescaled = q.begun && !all_ones(q.state.rescale, width);
    Product values = {b.v + row / 2 * b.values,
                      kForwardKeys / 2,
                      1,
                      b.weights,
                      width,
                      q.out,
                      width,
                      engine_words<Engine>(tile.keys),
                      nullptr,
                      nullptr,
                      q.begun,
                      rescaled ? q.state.rescale : nullptr};
    pairs_by_depth_of_columns(engine, values, h.value_size, width, mask.of_query);
    q.begun = true;
    if (b.finite[row / kForwardKeys] != 0) continue;
    pack_values(h, b, {key, key + tile.keys}, b.specials, true);
    values.a = b.specials;
    add_specials(values, h.value_size, width / kLanes);
  }
}

QKV_INLINE void finish_tile(const FlashHead& h, const PairForwardBuffers& b, PairTile& tile) {
  if (!tile.begun) return write_empty(h, tile.first, tile.count, b);
  finish_softmax(h, tile.first, tile.count, tile.state);
  transpose_words({tile.out, tile.width, b.values, tile.width}, b.rows, b.values);
  write_narrow(b.rows, b.values, h, tile.first, tile.count, tile.state.rescale);
}

// Keys that any of the queries sees, from the beginning of a block on.
QKV_INLINE RowRange blocks_of_queries(const FlashHead& h, std::int64_t begin, std::int64_t end) {
  const RowRange keys = keys_of_queries(h, begin, end - begin);
  return {keys.begin / kForwardKeys * kForwardKeys, keys.end};
}

// Queries [begin, end) of a head; begin is a multiple of the tile.
template <class Engine>
[[gnu::noinline]] static void pair_forward(const FlashHead& h, std::int64_t begin,
                                           std::int64_t end) {
  Engine engine;
  PairTile tiles[kPairTiles];
  const PairForwardBuffers b = pair_forward_buffers<Engine>(h);
  const RowRange all = blocks_of_queries(h, begin, end);
  const bool at_once = h.keys <= kPackedKeys;
  const std::int64_t step = at_once ? h.tile : kPairTiles * h.tile;
  if (at_once) pack_keys(h, b, all);
  engine.begin();
  for (std::int64_t first = begin; first < end; first += step) {
    const std::int64_t last = smaller(first + step, end);
    std::int64_t count = 0;
    for (std::int64_t i = first; i < last; i += h.tile, ++count)
      begin_tile<Engine>(h, b, count, {i, smaller(i + h.tile, last)}, tiles[count]);
    const RowRange keys = at_once ? all : blocks_of_queries(h, first, last);
    for (std::int64_t key = keys.begin; key < keys.end; key += kPackedKeys) {
      const RowRange packed = {key, smaller(key + kPackedKeys, keys.end)};
      if (!at_once) pack_keys(h, b, packed);
      for (std::int64_t i = 0; i < count; ++i) pair_forward_keys(engine, h, b, packed, tiles[i]);
    }
    for (std::int64_t i = 0; i < count; ++i) finish_tile(h, b, tiles[i]);
  }
  engine.end();
}

}  // namespace qkv::inline v0::kernels::QKV_ISA
