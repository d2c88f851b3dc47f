// Flash attention, backward: what happens to the scores of a tile between the products.
#pragma once

#include "kernels/simd/attention_buffers.h"
#include "kernels/simd/attention_softmax.h"

namespace qkv::inline v0::kernels::QKV_ISA {

// p (dp - delta), and exactly 0 where p is: a hidden key may have any dp.
QKV_INLINE F32 score_gradient(F32 p, F32 dp, F32 delta) {
  return keep(p != zero(), p * (dp - delta));
}

// Of one register of queries: scores s to weights p = 2^(factor s - lse), and dp to ds = p (dp -
// delta).
QKV_INLINE void gradient_register(const FlashTile& t, const BackwardBuffers& b, RowRange range,
                                  std::int64_t lane) {
  const std::int64_t query = t.first_query - b.first + lane;
  const F32 shift = zero() - load(b.lse + query), delta = load(b.delta + query);
  const F32 factor = set(b.score_factor);
  for (std::int64_t r = range.begin; r < range.end; ++r) {
    float* weight = b.weights + r * t.stride + lane;
    float* gradient = b.score_gradients + r * t.stride + lane;
    const F32 p = exp2_weight(fma(load(weight), factor, shift));
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

// As gradient_register in several passes: with dropout, and where delta = sum of p dp / sum of p is
// still to be formed because the tile holds all keys (`own_delta`). lse is rounded, so the weights
// sum to 1 only up to |lse| 2^-24; without the division a row that looks at one key alone would get
// that share of dp instead of none.
QKV_INLINE void gradient_register_in_passes(const FlashHead& h, const FlashTile& t,
                                            const BackwardBuffers& b, RowRange range,
                                            std::int64_t lane, bool own_delta) {
  const std::int64_t query = t.first_query - b.first + lane;
  const F32 shift = zero() - load(b.lse + query), factor = set(b.score_factor);
  const F32 given = load(b.delta + query);
  F32 delta = own_delta ? zero() : given, total = zero();
  for (std::int64_t r = range.begin; r < range.end; ++r) {
    float* weight = b.weights + r * t.stride + lane;
    const F32 p = exp2_weight(fma(load(weight), factor, shift));
    store(weight, p);
    total = total + p;
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
  // A row without keys uses none: all of its p are 0.
  if (own_delta) delta = delta / total + given;
  for (std::int64_t r = range.begin; r < range.end; ++r) {
    float* gradient = b.score_gradients + r * t.stride + lane;
    store(gradient, score_gradient(load(b.weights + r * t.stride + lane), load(gradient), delta));
  }
}

// Gradients of scores, zero where no register sees a key, to the bias.
QKV_INLINE void give_to_bias(const FlashHead& h, const FlashTile& t, const BackwardBuffers& b,
                             const TileMask& mask) {
  for (std::int64_t lane = 0; lane < t.stride; lane += kLanes) {
    const RowRange range = rows_of_register(mask, lane, t.keys);
    for (std::int64_t r = 0; r < range.begin; ++r)
      store(b.score_gradients + r * t.stride + lane, zero());
    for (std::int64_t r = range.end; r < t.keys; ++r)
      store(b.score_gradients + r * t.stride + lane, zero());
  }
  h.add_bias_gradient(h.bias_context, t, b.score_gradients);
}

// What a late scale leaves to do: gradients of capped scores to those of products. A hidden key
// may have any slope.
QKV_INLINE void finish_gradients(const FlashHead& h, const FlashTile& t, const BackwardBuffers& b,
                                 const TileMask& mask, float late_scale) {
  const F32 scale = set(late_scale);
  for (std::int64_t lane = 0; lane < t.stride; lane += kLanes) {
    const RowRange range = rows_of_register(mask, lane, t.keys);
    for (std::int64_t r = range.begin; r < range.end; ++r) {
      float* at = b.score_gradients + r * t.stride + lane;
      F32 ds = load(at);
      if (h.softcap != 0) ds = keep(ds != zero(), ds * load(b.cap_slopes + r * t.stride + lane));
      store(at, ds * scale);
    }
  }
}

}  // namespace qkv::inline v0::kernels::QKV_ISA
