// Flash attention for up to eight queries: scores, softmax and values without a transposed operand.
//
// Scores lie by key, `stride` (four or eight) rows of queries each, so that a register holds
// several keys. Keys and values are fp32, or bf16 that becomes fp32 in registers: a word of two
// numbers gives its even and its odd channel by a shift and a mask, hence the order of channels
// that FlashDecode asks for.
#pragma once

#include "kernels/simd/attention_forward.h"

namespace qkv::inline v0::kernels::QKV_ISA {

// Registers of fp32 that one load of a row gives.
template <bool kBrain>
constexpr int kPerLoad = kBrain ? 2 : 1;
template <bool kBrain>
constexpr std::int64_t kBytes = kBrain ? 2 : 4;

// Rows that are fetched into the first-level cache ahead of those that are read.
constexpr std::int64_t kFetchRows = 8;

// Fetches what is read after `at`: `near` bytes behind it into the first-level cache, `ahead` bytes
// behind it into the second. Line by line beside the loads: a burst of fetches would fill the
// buffers that loads need.
QKV_INLINE void fetch(const void* at, std::int64_t near, std::int64_t ahead) {
  const auto address = reinterpret_cast<std::uintptr_t>(at);
  __builtin_prefetch(reinterpret_cast<const void*>(address + static_cast<std::uintptr_t>(near)), 0,
                     3);
  __builtin_prefetch(reinterpret_cast<const void*>(address + static_cast<std::uintptr_t>(ahead)), 0,
                     2);
}

template <bool kBrain>
QKV_INLINE void load_channels(const void* row, std::int64_t d, Mask lanes, F32* to) {
  if constexpr (kBrain) {
    const U32 words = load(static_cast<const std::uint32_t*>(row) + d / 2);  // whole registers
    to[0] = as_f32(shift_left<16>(words));
    to[1] = as_f32(words & set(0xFFFF0000u));
  } else {
    to[0] = load(static_cast<const float*>(row) + d, lanes);
  }
}

template <bool kBrain>
QKV_INLINE const char* row_of(DecodeRows rows, std::int64_t row) {
  return static_cast<const char*>(rows.data) + row * rows.stride * kBytes<kBrain>;
}

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

// Lane i of every quad of the result is a part of the sum of r[i].
QKV_INLINE F32 sum_quads(const F32 (&r)[4]) {
#if defined(QKV_ISA_avx512)
  const __m512 a =
      _mm512_add_ps(_mm512_unpacklo_ps(r[0].v, r[1].v), _mm512_unpackhi_ps(r[0].v, r[1].v));
  const __m512 b =
      _mm512_add_ps(_mm512_unpacklo_ps(r[2].v, r[3].v), _mm512_unpackhi_ps(r[2].v, r[3].v));
  return {_mm512_add_ps(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xEE))};
#else
  F32 t[4] = {r[0], r[1], r[2], r[3]};
  transpose_quads(t);
  return (t[0] + t[1]) + (t[2] + t[3]);
#endif
}

// Keys whose products with four queries fill the registers.
constexpr int kDotKeys = kVectorRegisters >= 32 ? 4 : 2;

// Scores of kCount keys with four queries, to rows of `stride`.
template <bool kBrain, int kCount>
QKV_INLINE void dot_group(DecodeRows k, std::int64_t first, std::int64_t depth, const float* q,
                          std::int64_t width, std::int64_t ahead, float* scores,
                          std::int64_t stride) {
  constexpr int kLoads = kPerLoad<kBrain>;
  const std::int64_t near = kFetchRows * k.stride * kBytes<kBrain>;
  F32 sum[kCount][4];
#pragma GCC unroll 4
  for (int j = 0; j < kCount; ++j)
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) sum[j][r] = zero();
  for (std::int64_t d = 0; d < depth; d += kLoads * kLanes) {
    const Mask lanes = first_lanes(depth - d);
    F32 x[kCount][kLoads];
#pragma GCC unroll 4
    for (int j = 0; j < kCount; ++j) {
      const char* key = row_of<kBrain>(k, first + j);
      load_channels<kBrain>(key, d, lanes, x[j]);
      fetch(key + d * kBytes<kBrain>, near, ahead);
    }
#pragma GCC unroll 2
    for (int n = 0; n < kLoads; ++n)
#pragma GCC unroll 4
      for (int r = 0; r < 4; ++r) {
        const F32 query = load(q + r * width + d + n * kLanes);
#pragma GCC unroll 4
        for (int j = 0; j < kCount; ++j) sum[j][r] = fma(x[j][n], query, sum[j][r]);
      }
  }
  F32 part[kCount];
#pragma GCC unroll 4
  for (int j = 0; j < kCount; ++j) part[j] = sum_quads(sum[j]);
#if defined(QKV_ISA_avx512)
  if (kCount == 4 && stride == 4) {  // quads of four registers are summed together
    const __m512 a = _mm512_add_ps(_mm512_shuffle_f32x4(part[0].v, part[1 % kCount].v, 0x44),
                                   _mm512_shuffle_f32x4(part[0].v, part[1 % kCount].v, 0xEE));
    const __m512 b =
        _mm512_add_ps(_mm512_shuffle_f32x4(part[2 % kCount].v, part[3 % kCount].v, 0x44),
                      _mm512_shuffle_f32x4(part[2 % kCount].v, part[3 % kCount].v, 0xEE));
    store(scores,
          {_mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xDD))});
    return;
  }
#endif
#pragma GCC unroll 4
  for (int j = 0; j < kCount; ++j) store_quad_sum(scores + j * stride, part[j]);
}

// Scores of keys [first, first + count) of the rows in k.
template <bool kBrain>
QKV_INLINE void score_rows(const FlashDecode& d, std::int64_t first, std::int64_t count,
                           float* scores) {
  const FlashHead& h = d.head;
  for (std::int64_t j = 0; j < count; j += kDotKeys) {
    const std::int64_t keys = smaller(kDotKeys, count - j);
    for (std::int64_t row = 0; row < h.tile; row += 4) {
      const float* q = d.q + row * d.q_stride;
      float* to = scores + j * h.tile + row;
      if (keys == kDotKeys)
        dot_group<kBrain, kDotKeys>(d.k, first + j, h.head_size, q, d.q_stride, d.ahead_k, to,
                                    h.tile);
      else
        for (std::int64_t i = 0; i < keys; ++i)
          dot_group<kBrain, 1>(d.k, first + j + i, h.head_size, q, d.q_stride, d.ahead_k,
                               to + i * h.tile, h.tile);
    }
  }
}

// Running softmax of up to eight rows; lane c of a register of scores belongs to row c % stride.
struct RowSoftmax {
  float maximum[8], sum[8], rescale[8];
};
constexpr std::int64_t kMostLanes = kLanes > 8 ? kLanes : 8;  // of a pattern of rows

// Products to scores to weights 2^(s - maximum), in whole registers; updates maximum and sum.
QKV_INLINE void softmax_rows(const FlashHead& h, std::int64_t keys, const float* bias,
                             float* scores, RowSoftmax& state) {
  const std::int64_t stride = h.tile, count = keys * stride, padded = round_up(count, kLanes);
  const std::int64_t period = larger(stride, kLanes);
  for (std::int64_t i = 0; i < padded; i += kLanes) {
    F32 x = load(scores + i);
    if (h.softcap != 0) x = tanh_value(x) * set(h.softcap);
    if (bias) {
      const F32 b = load(bias + i);
      x = select(b == minus_infinity(), b, x + b);
    }
    store(scores + i, x);
  }
  for (std::int64_t i = count; i < padded; ++i) scores[i] = -__builtin_inff();
  float lanes[kMostLanes], safe[kMostLanes];
  for (std::int64_t c = 0; c < period; c += kLanes) {
    F32 largest = minus_infinity();  // max returns the second operand for NaN: NaN stays out
    for (std::int64_t i = c; i < padded; i += period) largest = max(load(scores + i), largest);
    store(lanes + c, largest);
  }
  for (std::int64_t r = 0; r < stride; ++r) {
    float largest = state.maximum[r];
    for (std::int64_t c = r; c < period; c += stride)
      if (lanes[c] > largest) largest = lanes[c];
    // A row that has seen no key yet has the maximum -inf; 0 in its place gives weights 2^-inf = 0.
    const float base = largest == -__builtin_inff() ? 0 : largest;
    for (std::int64_t c = r; c < period; c += stride) {
      safe[c] = base;
      lanes[c] = state.maximum[r] - base;
    }
    state.maximum[r] = largest;
  }
  for (std::int64_t c = 0; c < period; c += kLanes) store(lanes + c, exp2_weight(load(lanes + c)));
  for (std::int64_t r = 0; r < stride; ++r) {
    state.rescale[r] = lanes[r];
    state.sum[r] *= lanes[r];
  }
  for (std::int64_t c = 0; c < period; c += kLanes) {
    const F32 base = load(safe + c);
    F32 sum = zero();
    for (std::int64_t i = c; i < padded; i += period) {
      const F32 weight = exp2_weight(load(scores + i) - base);
      sum = sum + weight;
      store(scores + i, weight);
    }
    store(lanes + c, sum);
  }
  for (std::int64_t c = 0; c < period; ++c) state.sum[c % stride] += lanes[c];
}

// kRows rows from `row` on and kLoads loads of channels from `column` on: out = out rescale +
// weights values. fetch: of d.next_v too.
template <bool kBrain, int kRows, int kLoads>
[[gnu::noinline]] static void value_tile(const FlashDecode& d, const RowSoftmax& state,
                                         const float* weights, FlashRange keys, std::int64_t row,
                                         std::int64_t column, bool begun) {
  constexpr int kEach = kPerLoad<kBrain>, kVectors = kLoads * kEach;
  const FlashHead& h = d.head;
  const std::int64_t width = round_up(h.value_size, kLanes), stride = h.tile;
  float* out = d.out + row * width + column;
  F32 c[kRows][kVectors];
  Mask lanes[kLoads];
#pragma GCC unroll 4
  for (int n = 0; n < kLoads; ++n) lanes[n] = first_lanes(h.value_size - column - n * kLanes);
#pragma GCC unroll 4
  for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 4
    for (int n = 0; n < kVectors; ++n)
      c[m][n] = begun ? load(out + m * width + n * kLanes) * set(state.rescale[row + m]) : zero();
  const float* weight = weights + row;
  const std::int64_t near = kFetchRows * d.v.stride * kBytes<kBrain>;
  for (std::int64_t key = keys.begin; key < keys.end; ++key, weight += stride) {
    const char* values = row_of<kBrain>(d.v, key);
    F32 x[kVectors];
#pragma GCC unroll 4
    for (int n = 0; n < kLoads; ++n) {
      const std::int64_t at = column + n * kEach * kLanes;
      load_channels<kBrain>(values, at, lanes[n], x + n * kEach);
      fetch(values + at * kBytes<kBrain>, near, d.ahead_v);
    }
#pragma GCC unroll 4
    for (int m = 0; m < kRows; ++m) {
      const F32 left = set(weight[m]);
#pragma GCC unroll 4
      for (int n = 0; n < kVectors; ++n) c[m][n] = fma(left, x[n], c[m][n]);
    }
  }
#pragma GCC unroll 4
  for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 4
    for (int n = 0; n < kVectors; ++n) store(out + m * width + n * kLanes, c[m][n]);
}

}  // namespace qkv::inline v0::kernels::QKV_ISA
