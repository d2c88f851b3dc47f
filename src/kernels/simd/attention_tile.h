// Flash attention: what of a tile of scores is visible.
//
// Score tiles are stored by key: row r is key first_key + r, its lanes are queries. So the softmax
// needs no horizontal operation, and keys and values are read in place.
#pragma once

#include "kernels/simd/attention_product.h"

namespace qkv::inline v0::kernels::QKV_ISA {

// How much of a tile is visible. Rows (keys) and lanes (queries) in tile coordinates.
struct TileMask {
  bool partial;
  Band of_key;        // lanes that key row r sees: r + low .. r + high
  Band of_query;      // rows that lane q sees
  const float* bias;  // rows of the tile's stride; null: none
};

QKV_INLINE TileMask tile_mask(const FlashHead& h, const FlashTile& t, float* bias, bool* skip) {
  TileMask mask = {false, kEverything, kEverything, nullptr};
  const std::int64_t shift = t.first_query + h.offset - t.first_key;  // key of lane 0, as a row
  if (h.left >= 0) {
    mask.of_query.low = shift - h.left;
    mask.of_key.high = h.left - shift;
    mask.partial = t.queries - 1 + mask.of_query.low > 0;
  }
  if (h.right >= 0) {
    mask.of_query.high = shift + h.right;
    mask.of_key.low = -h.right - shift;
    mask.partial = mask.partial || mask.of_query.high < t.keys - 1;
  }
  *skip = t.queries - 1 + mask.of_query.high < 0 || mask.of_query.low > t.keys - 1;
  if (h.fill_bias && !*skip) {
    const FlashBias kind = h.fill_bias(h.bias_context, t, bias);
    if (kind == FlashBias::kBlocked) *skip = true;
    if (kind == FlashBias::kPartial) mask.partial = true;
    if (kind == FlashBias::kPartial || kind == FlashBias::kAdded) mask.bias = bias;
  }
  return mask;
}

// Rows that any lane of the register at `lane` sees: [begin, end).
struct RowRange {
  std::int64_t begin, end;
};
QKV_INLINE RowRange rows_of_register(const TileMask& mask, std::int64_t lane, std::int64_t rows) {
  const std::int64_t begin = clamp_to(lane + mask.of_query.low, 0, rows);
  return {begin, clamp_to(lane + kLanes + mask.of_query.high, begin, rows)};
}

// Row groups of a product reach up to 7 rows over the range of a register: zeroes 8 rows beside it.
QKV_INLINE void zero_beside(float* weights, std::int64_t stride, std::int64_t lane, RowRange range,
                            std::int64_t rows) {
  for (std::int64_t r = larger(range.begin - 8, 0); r < range.begin; ++r)
    store(weights + r * stride + lane, zero());
  for (std::int64_t r = range.end; r < smaller(range.end + 8, rows); ++r)
    store(weights + r * stride + lane, zero());
}

// Writes `hidden_value` where a lane does not see a key by window and causal.
QKV_INLINE void mask_rows(const TileMask& mask, float* scores, std::int64_t stride,
                          std::int64_t lane, RowRange range, F32 hidden_value) {
  const U32 one = set(1u), index = lane_index();
  U32 low = set(static_cast<std::uint32_t>(
      clamp_to(range.begin + mask.of_key.low - lane, -kFlashFar, kFlashFar)));
  U32 high = set(static_cast<std::uint32_t>(
      clamp_to(range.begin + mask.of_key.high - lane, -kFlashFar, kFlashFar)));
  for (std::int64_t r = range.begin; r < range.end; ++r, low = low + one, high = high + one) {
    float* at = scores + r * stride + lane;
    const Mask hidden = less_signed(index, low) | less_signed(high, index);
    store(at, select(hidden, hidden_value, load(at)));
  }
}

// Adds the bias, and writes -inf where a lane does not see a key.
QKV_INLINE void mask_scores(const TileMask& mask, float* scores, std::int64_t stride,
                            std::int64_t lane, RowRange range) {
  if (mask.bias) {
    for (std::int64_t r = range.begin; r < range.end; ++r) {
      float* at = scores + r * stride + lane;
      const F32 bias = load(mask.bias + r * stride + lane);
      store(at, select(bias == minus_infinity(), bias, load(at) + bias));
    }
  }
  // Rows that every lane sees need nothing: under causal all but one square on the diagonal.
  const std::int64_t begin = clamp_to(lane + kLanes - 1 - mask.of_key.high, range.begin, range.end);
  const std::int64_t end = clamp_to(lane - mask.of_key.low + 1, begin, range.end);
  mask_rows(mask, scores, stride, lane, {range.begin, begin}, minus_infinity());
  mask_rows(mask, scores, stride, lane, {end, range.end}, minus_infinity());
}

// Of one register of queries: x = score / cap to cap tanh(x), in the log2 domain. slopes: null, or
// rows that get 1 - tanh(x)^2.
QKV_INLINE void cap_scores(float cap, float* scores, float* slopes, std::int64_t stride,
                           std::int64_t lane, RowRange range) {
  for (std::int64_t r = range.begin; r < range.end; ++r) {
    float* at = scores + r * stride + lane;
    const F32 t = tanh_value(load(at));
    store(at, t * set(cap));
    if (slopes) store(slopes + r * stride + lane, fnma(t, t, set(1.0f)));
  }
}

// ALiBi: takes slope times the distance between query and key off.
QKV_INLINE void slope_scores(const FlashHead& h, const FlashTile& t, float* scores,
                             std::int64_t lane, RowRange range) {
  const F32 slope = set(h.slope), one = set(1.0f);
  F32 distance =
      set(static_cast<float>(t.first_query + lane + h.offset - t.first_key - range.begin)) +
      to_f32(lane_index());
  for (std::int64_t r = range.begin; r < range.end; ++r, distance = distance - one) {
    float* at = scores + r * t.stride + lane;
    store(at, fnma(slope, abs(distance), load(at)));
  }
}

// Products of one register of queries to scores: cap, distance, bias and mask.
QKV_INLINE void finish_scores(const FlashHead& h, const FlashTile& t, const TileMask& mask,
                              float* scores, float* slopes, std::int64_t lane, RowRange range) {
  if (h.softcap != 0) cap_scores(h.softcap, scores, slopes, t.stride, lane, range);
  if (h.slope != 0) slope_scores(h, t, scores, lane, range);
  if (mask.partial || mask.bias) mask_scores(mask, scores, t.stride, lane, range);
}

// The numbers of dropout for 4 keys (a multiple of 4 first) and the queries of a register.
QKV_INLINE PhiloxVectors dropout_numbers(const FlashHead& h, std::int64_t query, std::int64_t key) {
  const std::uint64_t mixed =
      h.key + static_cast<std::uint64_t>(query >> 16) * std::uint64_t{0x9E3779B97F4A7C15u};
  const U32 token = set(h.head << 16 | static_cast<std::uint32_t>(query & 0xFFFF)) + lane_index();
  return philox(mixed,
                {{set(static_cast<std::uint32_t>(key / 4)), token, set(h.sample), set(h.step)}});
}

}  // namespace qkv::inline v0::kernels::QKV_ISA
