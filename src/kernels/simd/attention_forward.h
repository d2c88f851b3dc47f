// Flash attention, forward: one query tile against the keys in blocks, with running maximum and
// sum.
#pragma once

#include "kernels/simd/attention_softmax.h"

namespace qkv::inline v0::kernels::QKV_ISA {

struct ForwardBuffers {
  float *scores, *bias;  // [kForwardKeys][tile]
  float *k, *v;          // [kForwardKeys][D], [kForwardKeys][Dv] in whole registers
  float* q;              // of every tile of the group: [D][tile], transposed and scaled
  float* out;            // likewise [tile][Dv in whole registers]
};
QKV_INLINE ForwardBuffers forward_buffers(const FlashHead& h) {
  ForwardBuffers b;
  b.scores = h.scratch;
  b.bias = b.scores + kForwardKeys * h.tile;
  b.k = b.bias + kForwardKeys * h.tile;
  b.v = b.k + kForwardKeys * round_up(h.head_size, kLanes);
  b.q = b.v + kForwardKeys * round_up(h.value_size, kLanes);
  b.out = b.q + smaller(kForwardTiles * h.tile, round_up(h.queries, h.tile)) * h.head_size;
  return b;
}

QKV_INLINE void write_rows(const float* from, std::int64_t from_stride, FlashOutput to,
                           std::int64_t first, std::int64_t count, std::int64_t depth,
                           const float* scale) {
  for (std::int64_t m = 0; m < count; ++m)
    for (std::int64_t d = 0; d < depth; d += kLanes) {
      const F32 x = load(from + m * from_stride + d);
      store(to.data + (first + m) * to.stride + d, scale ? x * set(scale[m]) : x,
            first_lanes(depth - d));
    }
}

QKV_INLINE void write_empty(const FlashHead& h, std::int64_t first, std::int64_t count) {
  for (std::int64_t m = first; m < first + count; ++m) {
    for (std::int64_t d = 0; d < h.value_size; d += kLanes)
      store(h.out.data + m * h.out.stride + d, zero(), first_lanes(h.value_size - d));
    h.lse[m] = -__builtin_inff();
  }
}

// Weights of one tile of scores; `bias` is its mask's.
QKV_INLINE void forward_weights(const FlashHead& h, const FlashTile& t, const TileMask& mask,
                                float* scores, RunningSoftmax& state) {
  for (std::int64_t lane = 0; lane < t.stride; lane += kLanes) {
    const RowRange range = rows_of_register(mask, lane, t.keys);
    finish_scores(h, t, mask, scores, nullptr, lane, range);
    softmax_register(scores, t.stride, range, set(1.0f), state, lane);
    if (h.dropout) drop_register(h, t, scores, range, lane);
    if (mask.partial) zero_beside(scores, t.stride, lane, range, t.keys);
  }
}

// A query tile on its way through the keys.
struct ForwardTile {
  RunningSoftmax state;
  RowRange keys;
  std::int64_t first, count;  // queries
  float *q, *out;
  bool single;  // one block of keys only: no rescaling, the product goes straight to `out`
  bool begun;
};

QKV_INLINE void begin_tile(const FlashHead& h, std::int64_t first, std::int64_t count, float* q,
                           float* out, ForwardTile& tile) {
  const std::int64_t width = round_up(count, kLanes);
  tile.keys = keys_of_queries(h, first, count);
  tile.first = first;
  tile.count = count;
  tile.q = q;
  tile.out = out;
  tile.single = h.value_size % kLanes == 0 &&
                tile.keys.end - tile.keys.begin / kForwardKeys * kForwardKeys <= kForwardKeys;
  tile.begun = false;
  for (std::int64_t lane = 0; lane < width; lane += kLanes) {
    store(tile.state.maximum + lane, minus_infinity());
    store(tile.state.sum + lane, zero());
  }
  if (tile.keys.begin < tile.keys.end)
    pack_transposed(rows_from(h.q, first), count, h.head_size, h.query_scale, q, width);
}

// One tile against the block of keys at `key`, whose rows k and v are; those of v may be read in
// whole registers.
[[gnu::noinline]] static void forward_block(const FlashHead& h, const ForwardBuffers& b,
                                            std::int64_t key, FlashRows k, FlashRows v,
                                            ForwardTile& to) {
  const std::int64_t width = round_up(to.count, kLanes);
  const std::int64_t value_width = round_up(h.value_size, kLanes);
  const FlashTile tile = {to.first, to.count, key, smaller(kForwardKeys, to.keys.end - key), width};
  bool skip = false;
  const TileMask mask = tile_mask(h, tile, b.bias, &skip);
  if (skip) return;
  product_by_columns(
      {k.data, k.stride, 1, to.q, width, b.scores, width, h.head_size, nullptr, nullptr, false},
      tile.keys, width / kLanes, mask.of_key);
  forward_weights(h, tile, mask, b.scores, to.state);
  const bool finite = !mask.partial || all_finite(v, tile.keys, h.value_size);
  Product product = {b.scores,         1,       width,       v.data,
                     v.stride,         to.out,  value_width, tile.keys,
                     to.state.rescale, nullptr, to.begun};
  if (to.single) {
    finish_softmax(h, to.first, to.count, to.state);
    product.c = h.out.data + to.first * h.out.stride;
    product.c_stride = h.out.stride;
    product.post = to.state.rescale;
  }
  product_masked(product, to.count, value_width / kLanes, mask.of_query, finite);
  to.begun = true;
}

QKV_INLINE void end_tile(const FlashHead& h, ForwardTile& tile) {
  if (!tile.begun) return write_empty(h, tile.first, tile.count);
  if (tile.single) return;
  finish_softmax(h, tile.first, tile.count, tile.state);
  write_rows(tile.out, round_up(h.value_size, kLanes), h.out, tile.first, tile.count, h.value_size,
             tile.state.rescale);
}

// Queries [begin, end) of a head, begin a multiple of the tile: in groups of tiles, whose blocks of
// keys are fetched once. Rows of a fused projection lie pages apart: several tiles are worth a copy
// close together.
[[gnu::noinline]] static void forward_queries(const FlashHead& h, std::int64_t begin,
                                              std::int64_t end) {
  const ForwardBuffers b = forward_buffers(h);
  const std::int64_t value_width = round_up(h.value_size, kLanes);
  ForwardTile tiles[kForwardTiles];
  for (std::int64_t first = begin; first < end; first += kForwardTiles * h.tile) {
    const std::int64_t last = smaller(end, first + kForwardTiles * h.tile);
    const std::int64_t count = (last - first + h.tile - 1) / h.tile;
    for (std::int64_t t = 0; t < count; ++t)
      begin_tile(h, first + t * h.tile, smaller(h.tile, last - first - t * h.tile),
                 b.q + t * h.tile * h.head_size, b.out + t * h.tile * value_width, tiles[t]);
    const bool copy_k = count > 2 && h.k.stride != h.head_size;
    const bool copy_v = (count > 2 && h.v.stride != h.value_size) || value_width != h.value_size;
    const RowRange keys = keys_of_queries(h, first, last - first);
    for (std::int64_t key = keys.begin / kForwardKeys * kForwardKeys; key < keys.end;
         key += kForwardKeys) {
      const std::int64_t rows = smaller(kForwardKeys, keys.end - key);
      FlashRows k = rows_from(h.k, key), v = rows_from(h.v, key);
      if (copy_k) k = copy_rows(k, rows, h.head_size, b.k);
      if (copy_v) v = copy_rows(v, rows, h.value_size, b.v);
      for (std::int64_t t = 0; t < count; ++t)
        if (key < tiles[t].keys.end && key + kForwardKeys > tiles[t].keys.begin)
          forward_block(h, b, key, k, v, tiles[t]);
    }
    for (std::int64_t t = 0; t < count; ++t) end_tile(h, tiles[t]);
  }
}

}  // namespace qkv::inline v0::kernels::QKV_ISA
