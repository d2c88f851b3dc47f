// AVX2 with FMA and BMI2: 8 lanes, masks are vectors. See vec.h.
#pragma once

#include <cstdint>

#include <immintrin.h>

namespace qkv::inline v0::kernels::QKV_ISA {

constexpr int kLanes = 8;
constexpr int kVectorRegisters = 16;

struct F32 {
  __m256 v;
};
struct U32 {
  __m256i v;
};
struct F64 {
  __m256d v;
};
struct Mask {
  __m256 v;
};

QKV_INLINE Mask first_lanes(std::int64_t n) {
  const int count = n >= 8 ? 8 : n <= 0 ? 0 : static_cast<int>(n);
  const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return {_mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(count), index))};
}
QKV_INLINE Mask mask_from_bits(std::uint32_t b) {
  const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  const __m256i set = _mm256_and_si256(_mm256_set1_epi32(static_cast<int>(b)), bit);
  return {_mm256_castsi256_ps(_mm256_cmpeq_epi32(set, bit))};
}
QKV_INLINE std::uint32_t bits(Mask m) {
  return static_cast<std::uint32_t>(_mm256_movemask_ps(m.v));
}
QKV_INLINE bool any(Mask m) { return bits(m) != 0; }
QKV_INLINE bool all(Mask m) { return bits(m) == 0xFF; }
QKV_INLINE Mask operator&(Mask a, Mask b) { return {_mm256_and_ps(a.v, b.v)}; }
QKV_INLINE Mask operator|(Mask a, Mask b) { return {_mm256_or_ps(a.v, b.v)}; }
QKV_INLINE Mask operator~(Mask a) {
  return {_mm256_xor_ps(a.v, _mm256_castsi256_ps(_mm256_set1_epi32(-1)))};
}

QKV_INLINE F32 set(float x) { return {_mm256_set1_ps(x)}; }
QKV_INLINE F32 zero() { return {_mm256_setzero_ps()}; }
QKV_INLINE F32 load(const float* p) { return {_mm256_loadu_ps(p)}; }
QKV_INLINE F32 load(const float* p, Mask m) {
  return {_mm256_maskload_ps(p, _mm256_castps_si256(m.v))};
}
QKV_INLINE void store(float* p, F32 a) { _mm256_storeu_ps(p, a.v); }
QKV_INLINE void store(float* p, F32 a, Mask m) {
  _mm256_maskstore_ps(p, _mm256_castps_si256(m.v), a.v);
}
QKV_INLINE void stream(float* p, F32 a) { _mm256_stream_ps(p, a.v); }  // p aligned to 32 bytes

QKV_INLINE F32 operator+(F32 a, F32 b) { return {_mm256_add_ps(a.v, b.v)}; }
QKV_INLINE F32 operator-(F32 a, F32 b) { return {_mm256_sub_ps(a.v, b.v)}; }
QKV_INLINE F32 operator*(F32 a, F32 b) { return {_mm256_mul_ps(a.v, b.v)}; }
QKV_INLINE F32 operator/(F32 a, F32 b) { return {_mm256_div_ps(a.v, b.v)}; }
QKV_INLINE F32 fma(F32 a, F32 b, F32 c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
QKV_INLINE F32 fnma(F32 a, F32 b, F32 c) { return {_mm256_fnmadd_ps(a.v, b.v, c.v)}; }
QKV_INLINE F32 reciprocal(F32 a) { return {_mm256_div_ps(_mm256_set1_ps(1.0f), a.v)}; }
QKV_INLINE F32 min(F32 a, F32 b) { return {_mm256_min_ps(a.v, b.v)}; }
QKV_INLINE F32 max(F32 a, F32 b) { return {_mm256_max_ps(a.v, b.v)}; }
QKV_INLINE F32 sqrt(F32 a) { return {_mm256_sqrt_ps(a.v)}; }
QKV_INLINE F32 round(F32 a) {
  return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}

QKV_INLINE Mask operator<(F32 a, F32 b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ)}; }
QKV_INLINE Mask operator<=(F32 a, F32 b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_LE_OQ)}; }
QKV_INLINE Mask operator>(F32 a, F32 b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_GT_OQ)}; }
QKV_INLINE Mask operator>=(F32 a, F32 b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_GE_OQ)}; }
QKV_INLINE Mask operator==(F32 a, F32 b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_EQ_OQ)}; }
QKV_INLINE Mask operator!=(F32 a, F32 b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_NEQ_UQ)}; }
QKV_INLINE F32 select(Mask m, F32 a, F32 b) { return {_mm256_blendv_ps(b.v, a.v, m.v)}; }
QKV_INLINE F32 keep(Mask m, F32 a) { return {_mm256_and_ps(m.v, a.v)}; }

QKV_INLINE float first_lane(F32 a) { return _mm256_cvtss_f32(a.v); }
QKV_INLINE F32 swap_pairs(F32 a) { return {_mm256_permute_ps(a.v, 0xB1)}; }

QKV_INLINE float sum(F32 a) {
  const __m128 h = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  const __m128 q = _mm_add_ps(h, _mm_movehl_ps(h, h));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}
QKV_INLINE float hmax(F32 a) {
  const __m128 h = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  const __m128 q = _mm_max_ps(h, _mm_movehl_ps(h, h));
  return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}
QKV_INLINE float hmin(F32 a) {
  const __m128 h = _mm_min_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  const __m128 q = _mm_min_ps(h, _mm_movehl_ps(h, h));
  return _mm_cvtss_f32(_mm_min_ss(q, _mm_movehdup_ps(q)));
}

QKV_INLINE U32 set(std::uint32_t x) { return {_mm256_set1_epi32(static_cast<int>(x))}; }
QKV_INLINE U32 load(const std::uint32_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))};
}
QKV_INLINE U32 load(const std::uint32_t* p, Mask m) {
  return {_mm256_maskload_epi32(reinterpret_cast<const int*>(p), _mm256_castps_si256(m.v))};
}
QKV_INLINE void store(std::uint32_t* p, U32 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.v);
}
QKV_INLINE void store(std::uint32_t* p, U32 a, Mask m) {
  _mm256_maskstore_epi32(reinterpret_cast<int*>(p), _mm256_castps_si256(m.v), a.v);
}
QKV_INLINE U32 lane_index() { return {_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)}; }
QKV_INLINE U32 operator+(U32 a, U32 b) { return {_mm256_add_epi32(a.v, b.v)}; }
QKV_INLINE U32 operator-(U32 a, U32 b) { return {_mm256_sub_epi32(a.v, b.v)}; }
QKV_INLINE U32 operator&(U32 a, U32 b) { return {_mm256_and_si256(a.v, b.v)}; }
QKV_INLINE U32 operator|(U32 a, U32 b) { return {_mm256_or_si256(a.v, b.v)}; }
QKV_INLINE U32 operator^(U32 a, U32 b) { return {_mm256_xor_si256(a.v, b.v)}; }
template <int kBits>
QKV_INLINE U32 shift_left(U32 a) {
  return {_mm256_slli_epi32(a.v, kBits)};
}
template <int kBits>
QKV_INLINE U32 shift_right(U32 a) {
  return {_mm256_srli_epi32(a.v, kBits)};
}
QKV_INLINE Mask operator==(U32 a, U32 b) {
  return {_mm256_castsi256_ps(_mm256_cmpeq_epi32(a.v, b.v))};
}
QKV_INLINE Mask less_signed(U32 a, U32 b) {
  return {_mm256_castsi256_ps(_mm256_cmpgt_epi32(b.v, a.v))};
}
QKV_INLINE Mask less_unsigned(U32 a, U32 b) {
  const U32 top = set(0x80000000u);
  return less_signed(a ^ top, b ^ top);
}
QKV_INLINE U32 as_u32(F32 a) { return {_mm256_castps_si256(a.v)}; }
QKV_INLINE F32 as_f32(U32 a) { return {_mm256_castsi256_ps(a.v)}; }
QKV_INLINE U32 to_i32(F32 a) { return {_mm256_cvtps_epi32(a.v)}; }
QKV_INLINE F32 to_f32(U32 a) { return {_mm256_cvtepi32_ps(a.v)}; }

// Four rows: lane 4 q + i of r[j] becomes what lane 4 q + j of r[i] was. And one of its quads.
QKV_INLINE void transpose_quads(F32 (&r)[4]) {
  const __m256 a = _mm256_unpacklo_ps(r[0].v, r[1].v), b = _mm256_unpackhi_ps(r[0].v, r[1].v);
  const __m256 c = _mm256_unpacklo_ps(r[2].v, r[3].v), d = _mm256_unpackhi_ps(r[2].v, r[3].v);
  r[0].v = _mm256_shuffle_ps(a, c, 0x44);
  r[1].v = _mm256_shuffle_ps(a, c, 0xEE);
  r[2].v = _mm256_shuffle_ps(b, d, 0x44);
  r[3].v = _mm256_shuffle_ps(b, d, 0xEE);
}
QKV_INLINE void store_quad(float* p, F32 a, int q) {
  _mm_storeu_ps(p, q == 0 ? _mm256_castps256_ps128(a.v) : _mm256_extractf128_ps(a.v, 1));
}

struct WideProduct {
  U32 high, low;
};
QKV_INLINE WideProduct mul_wide(U32 a, U32 b) {
  const __m256i even = _mm256_mul_epu32(a.v, b.v);
  const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(a.v, 32), _mm256_srli_epi64(b.v, 32));
  return {{_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA)},
          {_mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA)}};
}

// 64-bit products of the even lanes; and the odd lanes in the place of the even ones.
QKV_INLINE U32 mul_even(U32 a, U32 b) { return {_mm256_mul_epu32(a.v, b.v)}; }
QKV_INLINE U32 odd_to_even(U32 a) { return {_mm256_shuffle_epi32(a.v, 0xF5)}; }

// Flag i: the i-th 16-bit number is at least `limit`, 2 kLanes of them.
QKV_INLINE std::uint64_t at_least_16(U32 a, std::uint32_t limit) {
  const __m256i l = _mm256_set1_epi16(static_cast<short>(limit));
  const __m256i yes = _mm256_cmpeq_epi16(_mm256_max_epu16(a.v, l), a.v);
  return _pext_u32(static_cast<std::uint32_t>(_mm256_movemask_epi8(yes)), 0x55555555u);
}

QKV_INLINE F32 abs(F32 a) { return as_f32(as_u32(a) & set(0x7FFFFFFFu)); }
// In two steps, so that results down to the denormals round once.
QKV_INLINE F32 scale2(F32 x, F32 n) {
  const U32 whole = to_i32(n);
  const U32 half = {_mm256_srai_epi32(whole.v, 1)};
  const F32 first = as_f32(shift_left<23>(half + set(127u)));
  const F32 second = as_f32(shift_left<23>(whole - half + set(127u)));
  return x * first * second;
}

QKV_INLINE F64 zero64() { return {_mm256_setzero_pd()}; }
QKV_INLINE F64 set(double x) { return {_mm256_set1_pd(x)}; }
QKV_INLINE F64 widen_low(F32 a) { return {_mm256_cvtps_pd(_mm256_castps256_ps128(a.v))}; }
QKV_INLINE F64 widen_high(F32 a) { return {_mm256_cvtps_pd(_mm256_extractf128_ps(a.v, 1))}; }
// kLanes / 2 floats.
QKV_INLINE F64 load_wide(const float* p) { return {_mm256_cvtps_pd(_mm_loadu_ps(p))}; }
QKV_INLINE F64 operator+(F64 a, F64 b) { return {_mm256_add_pd(a.v, b.v)}; }
QKV_INLINE F64 operator-(F64 a, F64 b) { return {_mm256_sub_pd(a.v, b.v)}; }
QKV_INLINE F64 operator*(F64 a, F64 b) { return {_mm256_mul_pd(a.v, b.v)}; }
QKV_INLINE F64 fma(F64 a, F64 b, F64 c) { return {_mm256_fmadd_pd(a.v, b.v, c.v)}; }
QKV_INLINE double sum(F64 a) {
  const __m128d h = _mm_add_pd(_mm256_castpd256_pd128(a.v), _mm256_extractf128_pd(a.v, 1));
  return _mm_cvtsd_f64(_mm_add_sd(h, _mm_unpackhi_pd(h, h)));
}

}  // namespace qkv::inline v0::kernels::QKV_ISA
