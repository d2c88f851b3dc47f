// Flash attention for few queries: the heads that share a key/value head as the rows of one tile,
// over a run of its keys. Keys and values are read once, in the order of memory.
#pragma once

#include "kernels/simd/attention_decode_rows.h"

namespace qkv::inline v0::kernels::QKV_ISA {

// Weights times values of keys [begin, end), all rows.
template <bool kBrain, int kRows>
QKV_INLINE void value_columns(const FlashDecode& d, const RowSoftmax& state, const float* weights,
                              FlashRange keys, std::int64_t row, bool begun) {
  constexpr int kEach = kPerLoad<kBrain>, kMost = kMaxVectors / kEach;
  const std::int64_t loads = round_up(d.head.value_size, kLanes) / kLanes / kEach;
  std::int64_t n = 0;
  for (; n + kMost <= loads; n += kMost)
    value_tile<kBrain, kRows, kMost>(d, state, weights, keys, row, n * kEach * kLanes, begun);
  for (; n < loads; ++n)
    value_tile<kBrain, kRows, 1>(d, state, weights, keys, row, n * kEach * kLanes, begun);
}
template <bool kBrain>
QKV_INLINE void value_rows(const FlashDecode& d, const RowSoftmax& state, const float* weights,
                           FlashRange keys, bool begun) {
  if (d.rows == 1) return value_columns<kBrain, 1>(d, state, weights, keys, 0, begun);
  for (std::int64_t row = 0; row < d.head.tile; row += 4)
    value_columns<kBrain, 4>(d, state, weights, keys, row, begun);
}

// Rows of values in fp32 and whole registers.
template <bool kBrain>
QKV_INLINE FlashRows copy_values(DecodeRows v, FlashRange keys, std::int64_t depth, float* to) {
  constexpr int kEach = kPerLoad<kBrain>;
  const std::int64_t width = round_up(depth, kLanes);
  for (std::int64_t key = keys.begin; key < keys.end; ++key)
    for (std::int64_t c = 0; c < width; c += kEach * kLanes) {
      F32 x[kEach];
      load_channels<kBrain>(row_of<kBrain>(v, key), c, first_lanes(depth - c), x);
#pragma GCC unroll 2
      for (int n = 0; n < kEach; ++n) store(to + (key - keys.begin) * width + c + n * kLanes, x[n]);
    }
  return {to, width};
}

// Up to eight rows.
template <bool kBrain>
[[gnu::noinline]] static void decode_rows(const FlashDecode& d, std::int64_t begin,
                                          std::int64_t end) {
  const FlashHead& h = d.head;
  const std::int64_t value_width = round_up(h.value_size, kLanes);
  float* scores = h.scratch;
  float* bias = scores + kDecodeKeys * h.tile;
  float* v_rows = bias + kDecodeKeys * h.tile;
  RowSoftmax state;
  for (int r = 0; r < 8; ++r) {
    state.maximum[r] = -__builtin_inff();
    state.sum[r] = 0;
  }
  bool begun = false;
  for (std::int64_t key = begin; key < end; key += kDecodeKeys) {
    const FlashTile tile = {0, d.rows, key, smaller(kDecodeKeys, end - key), h.tile};
    bool skip = false;
    const TileMask mask = tile_mask(h, tile, bias, &skip);
    if (skip) continue;
    const FlashRange keys = {key - d.first_key, key - d.first_key + tile.keys};
    score_rows<kBrain>(d, keys.begin, tile.keys, scores);
    softmax_rows(h, tile.keys, mask.bias, scores, state);
    bool finite = true;
    if (mask.partial) {  // hidden values may be anything
      const FlashRows v = copy_values<kBrain>(d.v, keys, h.value_size, v_rows);
      finite = all_finite(v, tile.keys, value_width);
      if (!finite)
        product_selected({scores, 1, h.tile, v.data, v.stride, d.out, value_width, tile.keys,
                          state.rescale, nullptr, begun},
                         d.rows, value_width / kLanes, kEverything);
    }
    if (finite) value_rows<kBrain>(d, state, scores, keys, begun);
    begun = true;
  }
  for (std::int64_t r = 0; r < d.rows; ++r) {
    d.maximum[r] = state.maximum[r];
    d.sum[r] = state.sum[r];
  }
  if (begun) return;
  for (std::int64_t i = 0; i < d.rows * value_width; i += kLanes) store(d.out + i, zero());
}

// More rows: the lanes of a tile, as in forward.
[[gnu::noinline]] static void decode_lanes(const FlashDecode& d, std::int64_t begin,
                                           std::int64_t end) {
  const FlashHead& h = d.head;
  const FlashRows all_k = {static_cast<const float*>(d.k.data), d.k.stride};
  const FlashRows all_v = {static_cast<const float*>(d.v.data), d.v.stride};
  const std::int64_t stride = h.tile, value_width = round_up(h.value_size, kLanes);
  float* scores = h.scratch;
  float* bias = scores + kDecodeKeys * stride;
  float* v_rows = bias + kDecodeKeys * stride;
  RunningSoftmax state;
  for (std::int64_t lane = 0; lane < stride; lane += kLanes) {
    store(state.maximum + lane, minus_infinity());
    store(state.sum + lane, zero());
  }
  bool begun = false;
  for (std::int64_t key = begin; key < end; key += kDecodeKeys) {
    const FlashTile tile = {0, d.rows, key, smaller(kDecodeKeys, end - key), stride};
    bool skip = false;
    const TileMask mask = tile_mask(h, tile, bias, &skip);
    if (skip) continue;
    const FlashRows k = rows_from(all_k, key - d.first_key);
    FlashRows v = rows_from(all_v, key - d.first_key);
    product_by_columns(
        {k.data, k.stride, 1, d.q, stride, scores, stride, h.head_size, nullptr, nullptr, false},
        tile.keys, stride / kLanes, kEverything);
    forward_weights(h, tile, mask, scores, state);
    const bool finite = !mask.partial || all_finite(v, tile.keys, h.value_size);
    if (value_width != h.value_size) v = copy_rows(v, tile.keys, h.value_size, v_rows);
    product_masked({scores, 1, stride, v.data, v.stride, d.out, value_width, tile.keys,
                    state.rescale, nullptr, begun},
                   d.rows, value_width / kLanes, kEverything, finite);
    begun = true;
  }
  for (std::int64_t lane = 0; lane < stride; lane += kLanes) {
    store(d.maximum + lane, load(state.maximum + lane));
    store(d.sum + lane, load(state.sum + lane));
  }
  if (begun) return;
  for (std::int64_t i = 0; i < d.rows * value_width; i += kLanes) store(d.out + i, zero());
}

// See FlashTable.
[[gnu::noinline]] static void decode_keys(const FlashDecode& d, std::int64_t begin,
                                          std::int64_t end) {
  if (d.transposed) return decode_lanes(d, begin, end);
  if (d.brain) return decode_rows<true>(d, begin, end);
  decode_rows<false>(d, begin, end);
}

}  // namespace qkv::inline v0::kernels::QKV_ISA
