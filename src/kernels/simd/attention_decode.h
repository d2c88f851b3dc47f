// Flash attention for few queries: the heads that share a key/value head as the lanes of one tile,
// over a run of its keys. Keys and values are read once, in the order of memory.
#pragma once

#include "kernels/simd/attention_forward.h"

namespace qkv::inline v0::kernels::QKV_ISA {

// to[i] = sum over quads of lane i, i < 4.
QKV_INLINE void store_quad_sum(float* to, F32 a) {
#if defined(QKV_ISA_avx512)
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
#elif defined(QKV_ISA_avx2)
  _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1)));
#else
  store(to, a);
#endif
}

// Keys whose products with four queries fill the registers, and how far ahead keys are fetched.
constexpr int kDotKeys = kVectorRegisters >= 32 ? 4 : 2;
constexpr std::int64_t kFetchAhead = 16;

QKV_INLINE void fetch_row(FlashRows rows, std::int64_t row, std::int64_t depth) {
  const float* at = rows.data + row * rows.stride;
  for (std::int64_t d = 0; d < depth; d += 16) __builtin_prefetch(at + d);
}

// Scores of kCount keys from `first` on and four queries, whose rows are `width` apart.
template <int kCount>
QKV_INLINE void dot_group(FlashRows k, std::int64_t first, std::int64_t depth, const float* q,
                          std::int64_t width, float* scores, std::int64_t stride) {
  F32 sum[kCount][4];
#pragma GCC unroll 4
  for (int j = 0; j < kCount; ++j)
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) sum[j][r] = zero();
  const float* key = k.data + first * k.stride;
  for (std::int64_t d = 0; d < depth; d += kLanes) {
    const Mask lanes = first_lanes(depth - d);
    F32 x[kCount];
#pragma GCC unroll 4
    for (int j = 0; j < kCount; ++j) x[j] = load(key + j * k.stride + d, lanes);
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) {
      const F32 query = load(q + r * width + d);
#pragma GCC unroll 4
      for (int j = 0; j < kCount; ++j) sum[j][r] = fma(x[j], query, sum[j][r]);
    }
  }
#pragma GCC unroll 4
  for (int j = 0; j < kCount; ++j) {
    transpose_quads(sum[j]);
    store_quad_sum(scores + j * stride, (sum[j][0] + sum[j][1]) + (sum[j][2] + sum[j][3]));
  }
}

// Scores of `keys` keys with all rows: horizontal sums, which few rows make cheaper than a product
// whose lanes are queries.
[[gnu::noinline]] static void dot_products(const FlashDecode& d, FlashRows k, FlashRows v,
                                           std::int64_t keys, float* scores) {
  const FlashHead& h = d.head;
  const std::int64_t width = round_up(h.head_size, kLanes);
  for (std::int64_t j = 0; j < keys; j += kDotKeys) {
    const std::int64_t count = smaller(kDotKeys, keys - j);
    for (std::int64_t i = j; i < j + count; ++i) {
      fetch_row(k, i + kFetchAhead, h.head_size);
      fetch_row(v, i, h.value_size);
    }
    for (std::int64_t row = 0; row < d.rows; row += 4) {
      const float* q = d.q + row * width;
      float* to = scores + j * h.tile + row;
      if (count == kDotKeys)
        dot_group<kDotKeys>(k, j, h.head_size, q, width, to, h.tile);
      else
        for (std::int64_t i = 0; i < count; ++i)
          dot_group<1>(k, j + i, h.head_size, q, width, to + i * h.tile, h.tile);
    }
  }
}

// Keys [begin, end) against all rows: their maxima, sums and values that are not yet divided.
[[gnu::noinline]] static void decode_keys(const FlashDecode& d, std::int64_t begin,
                                          std::int64_t end) {
  const FlashHead& h = d.head;
  const std::int64_t stride = h.tile, value_width = round_up(h.value_size, kLanes);
  float* scores = h.scratch;
  float* bias = scores + kDecodeKeys * stride;
  float* v_rows = bias + kDecodeKeys * stride;
  for (std::int64_t i = 0; i < kDecodeKeys * stride; i += kLanes) store(scores + i, zero());
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
    const FlashRows k = rows_from(h.k, key - d.first_key);
    FlashRows v = rows_from(h.v, key - d.first_key);
    if (d.transposed)
      product_by_columns(
          {k.data, k.stride, 1, d.q, stride, scores, stride, h.head_size, nullptr, nullptr, false},
          tile.keys, stride / kLanes, kEverything);
    else
      dot_products(d, k, v, tile.keys, scores);
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

}  // namespace qkv::inline v0::kernels::QKV_ISA
