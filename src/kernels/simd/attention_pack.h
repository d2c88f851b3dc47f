// Flash attention: rows packed and transposed into registers, weights from scores.
#pragma once

#include "kernels/attention_flash.h"
#include "kernels/simd/vec.h"

namespace qkv::inline v0::kernels::QKV_ISA {

constexpr float kLog2E = 1.44269504088896340736f;
constexpr float kLn2 = 0.69314718055994530942f;

QKV_INLINE std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
QKV_INLINE std::int64_t larger(std::int64_t a, std::int64_t b) { return a > b ? a : b; }
QKV_INLINE std::int64_t clamp_to(std::int64_t x, std::int64_t low, std::int64_t high) {
  return x < low ? low : x > high ? high : x;
}
QKV_INLINE std::int64_t round_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }
QKV_INLINE F32 minus_infinity() { return set(-__builtin_inff()); }

#if defined(QKV_ISA_avx512)
QKV_INLINE F32 load_quads(const float* const* rows, std::int64_t at) {
  __m512 z = _mm512_castps128_ps512(_mm_loadu_ps(rows[0] + at));
  z = _mm512_insertf32x4(z, _mm_loadu_ps(rows[4] + at), 1);
  z = _mm512_insertf32x4(z, _mm_loadu_ps(rows[8] + at), 2);
  return {_mm512_insertf32x4(z, _mm_loadu_ps(rows[12] + at), 3)};
}
#elif defined(QKV_ISA_avx2)
QKV_INLINE F32 load_quads(const float* const* rows, std::int64_t at) {
  const __m256 z = _mm256_castps128_ps256(_mm_loadu_ps(rows[0] + at));
  return {_mm256_insertf128_ps(z, _mm_loadu_ps(rows[4] + at), 1)};
}
#else
QKV_INLINE F32 load_quads(const float* const* rows, std::int64_t at) { return load(rows[0] + at); }
#endif

// to[d * width + r] = scale * from[r][d] for r < rows. Lanes from `rows` to `width` (a multiple of
// kLanes) repeat the last row: they are never used, but must not be read from past the end.
[[maybe_unused, gnu::noinline]] static void pack_transposed(FlashRows from, std::int64_t rows,
                                                            std::int64_t depth, float scale,
                                                            float* to, std::int64_t width) {
  const F32 factor = set(scale);
  for (std::int64_t first = 0; first < width; first += kLanes) {
    const float* row[kLanes];
    for (int i = 0; i < kLanes; ++i)
      row[i] = from.data + smaller(first + i, rows - 1) * from.stride;
    std::int64_t d = 0;
    for (; d + 4 <= depth; d += 4) {
      F32 r[4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) r[i] = load_quads(row + i, d);
      transpose_quads(r);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) store(to + (d + i) * width + first, r[i] * factor);
    }
    for (; d < depth; ++d)
      for (int i = 0; i < kLanes; ++i) to[d * width + first + i] = row[i][d] * scale;
  }
}

// Copies rows into whole registers, zeros behind them.
QKV_INLINE FlashRows copy_rows(FlashRows from, std::int64_t rows, std::int64_t depth, float* to) {
  const std::int64_t width = round_up(depth, kLanes);
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t d = 0; d < width; d += kLanes)
      store(to + r * width + d, load(from.data + r * from.stride + d, first_lanes(depth - d)));
  return {to, width};
}

QKV_INLINE FlashRows rows_from(FlashRows rows, std::int64_t first) {
  return {rows.data + first * rows.stride, rows.stride};
}

// x 2^n where `lanes`, else 0. Hidden lanes must not underflow: a denormal result costs a hundred
// cycles.
#if defined(QKV_ISA_avx512)
QKV_INLINE F32 scale2_where(Mask lanes, F32 x, F32 n) {
  return {_mm512_maskz_scalef_ps(lanes.v, x.v, n.v)};
}
#else
QKV_INLINE F32 scale2_where(Mask lanes, F32 x, F32 n) {
  return keep(lanes, scale2(x, max(set(-126.0f), n)));
}
#endif

// 2^x for x <= 0 or a little above; 0 from -126 down, for -inf too; NaN for NaN. Accuracy: 4 ULP.
QKV_INLINE F32 exp2_weight(F32 x) {
  const Mask alive = ~(x <= set(-126.0f));
  const F32 n = round(x), r = x - n;
  F32 p = set(0.00133813025373f);
  p = fma(p, r, set(0.00966636851539f));
  p = fma(p, r, set(0.055503810138f));
  p = fma(p, r, set(0.24022349038f));
  p = fma(p, r, set(0.69314718056f));
  return scale2_where(alive, fma(p, r, set(1.0f)), n);
}

QKV_INLINE bool all_finite(FlashRows rows, std::int64_t count, std::int64_t depth) {
  F32 sum[2] = {zero(), zero()};  // 0 x is NaN where x is not finite
  for (std::int64_t d = 0; d < depth; d += kLanes) {
    const Mask lanes = first_lanes(depth - d);
    const float* at = rows.data + d;
    std::int64_t r = 0;
    for (; r + 2 <= count; r += 2, at += 2 * rows.stride) {
      sum[0] = fma(load(at, lanes), zero(), sum[0]);
      sum[1] = fma(load(at + rows.stride, lanes), zero(), sum[1]);
    }
    if (r < count) sum[0] = fma(load(at, lanes), zero(), sum[0]);
  }
  return !any(sum[0] + sum[1] != zero());
}

}  // namespace qkv::inline v0::kernels::QKV_ISA
