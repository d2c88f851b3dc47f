// Flash attention, forward: the running softmax of a tile, and dropout on its weights.
#pragma once

#include "kernels/simd/attention_tile.h"

namespace qkv::inline v0::kernels::QKV_ISA {

// Running softmax of the queries of a tile, in the log2 domain.
struct RunningSoftmax {
  alignas(64) float maximum[kFlashQueries];
  alignas(64) float sum[kFlashQueries];
  alignas(64) float rescale[kFlashQueries];  // what older sums are multiplied with
};

// What a register of queries needs for its weights, which are 2^(factor score + shift).
struct SoftmaxShift {
  F32 shift, sum;
};

// Updates maximum and rescale of one register of queries by scores times factor (> 0). The caller
// adds the weights to the sum, and stores it.
QKV_INLINE SoftmaxShift shift_register(const float* scores, std::int64_t stride, RowRange range,
                                       F32 factor, RunningSoftmax& state, std::int64_t lane) {
  const F32 old = load(state.maximum + lane);
  F32 largest[2] = {minus_infinity(), minus_infinity()};
  std::int64_t r = range.begin;
  for (; r + 2 <= range.end; r += 2) {  // max returns the second operand for NaN: NaN stays out
    largest[0] = max(load(scores + r * stride + lane), largest[0]);
    largest[1] = max(load(scores + (r + 1) * stride + lane), largest[1]);
  }
  if (r < range.end) largest[0] = max(load(scores + r * stride + lane), largest[0]);
  const F32 maximum = max(max(largest[0], largest[1]) * factor, old);
  // A row that has seen no key yet has the maximum -inf; 0 in its place gives weights 2^-inf = 0.
  const F32 safe = select(maximum == minus_infinity(), zero(), maximum);
  const F32 rescale = exp2_weight(old - safe);
  store(state.maximum + lane, maximum);
  store(state.rescale + lane, rescale);
  return {zero() - safe, load(state.sum + lane) * rescale};
}

// Scores of one register of queries times factor to weights 2^(s - maximum); updates maximum and
// sum.
QKV_INLINE void softmax_register(float* scores, std::int64_t stride, RowRange range, F32 factor,
                                 RunningSoftmax& state, std::int64_t lane) {
  SoftmaxShift s = shift_register(scores, stride, range, factor, state, lane);
  for (std::int64_t r = range.begin; r < range.end; ++r) {
    const F32 weight = exp2_weight(fma(load(scores + r * stride + lane), factor, s.shift));
    s.sum = s.sum + weight;
    store(scores + r * stride + lane, weight);
  }
  store(state.sum + lane, s.sum);
}

// Zeroes dropped weights of one register of queries and scales the others.
QKV_INLINE void drop_register(const FlashHead& h, const FlashTile& t, float* weights,
                              RowRange range, std::int64_t lane) {
  const U32 threshold = set(h.threshold);
  const F32 scale = set(h.keep_scale);
  for (std::int64_t block = range.begin & ~std::int64_t{3}; block < range.end; block += 4) {
    const PhiloxVectors numbers = dropout_numbers(h, t.first_query + lane, t.first_key + block);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      if (block + i < range.begin || block + i >= range.end) continue;
      float* at = weights + (block + i) * t.stride + lane;
      store(at, keep(~less_unsigned(numbers.word[i], threshold), load(at) * scale));
    }
  }
}

// log2 of 1 <= x < inf; NaN for NaN. Accuracy: 2 ULP of the larger of result and 1.
QKV_INLINE F32 log2_above_one(F32 x) {
  const U32 word = as_u32(x);
  F32 exponent = to_f32(shift_right<23>(word) - set(127u));
  F32 mantissa = as_f32((word & set(0x7FFFFFu)) | set(0x3F800000u));
  const Mask upper = mantissa > set(1.41421356f);
  mantissa = select(upper, mantissa * set(0.5f), mantissa);
  exponent = select(upper, exponent + set(1.0f), exponent);
  const F32 s = (mantissa - set(1.0f)) / (mantissa + set(1.0f)), s2 = s * s;
  F32 p = set(2.88539008f / 9);  // 2 / ln 2 * (s + s^3 / 3 + ..)
  p = fma(p, s2, set(2.88539008f / 7));
  p = fma(p, s2, set(2.88539008f / 5));
  p = fma(p, s2, set(2.88539008f / 3));
  p = fma(p, s2, set(2.88539008f));
  return fma(p, s, exponent) + (x - x);
}

// lse and the factor 1 / sum of every query; 0 and -inf where no key was visible.
QKV_INLINE void finish_softmax(const FlashHead& h, std::int64_t first, std::int64_t count,
                               RunningSoftmax& state) {
  for (std::int64_t lane = 0; lane < count; lane += kLanes) {
    const F32 sum = load(state.sum + lane);
    const Mask empty = sum == zero();
    const F32 lse = (load(state.maximum + lane) + log2_above_one(sum)) * set(kLn2);
    store(h.lse + first + lane, select(empty, minus_infinity(), lse), first_lanes(count - lane));
    store(state.rescale + lane, select(empty, zero(), set(1.0f) / sum));
  }
}

// Keys that any query of [first, first + count) may see by window and causal.
QKV_INLINE RowRange keys_of_queries(const FlashHead& h, std::int64_t first, std::int64_t count) {
  const std::int64_t begin = h.left < 0 ? 0 : clamp_to(first + h.offset - h.left, 0, h.keys);
  const std::int64_t end =
      h.right < 0 ? h.keys : clamp_to(first + count + h.offset + h.right, begin, h.keys);
  return {begin, end};
}

}  // namespace qkv::inline v0::kernels::QKV_ISA
