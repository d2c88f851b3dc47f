// AVX-512 (F, DQ, BW, VL): 16 lanes, masks are registers of their own. See vec.h.
#pragma once

#include <cstdint>

#include <immintrin.h>

namespace qkv::inline v0::kernels::QKV_ISA {

constexpr int kLanes = 16;
constexpr int kVectorRegisters = 32;

struct F32 {
  __m512 v;
};
struct U32 {
  __m512i v;
};
struct F64 {
  __m512d v;
};
struct Mask {
  __mmask16 v;
};

QKV_INLINE Mask first_lanes(std::int64_t n) {
  return {n >= 16  ? __mmask16{0xFFFF}
          : n <= 0 ? __mmask16{0}
                   : static_cast<__mmask16>((1u << n) - 1)};
}
QKV_INLINE Mask mask_from_bits(std::uint32_t b) { return {static_cast<__mmask16>(b)}; }
QKV_INLINE std::uint32_t bits(Mask m) { return m.v; }
QKV_INLINE bool any(Mask m) { return m.v != 0; }
QKV_INLINE bool all(Mask m) { return m.v == 0xFFFF; }
QKV_INLINE Mask operator&(Mask a, Mask b) { return {static_cast<__mmask16>(a.v & b.v)}; }
QKV_INLINE Mask operator|(Mask a, Mask b) { return {static_cast<__mmask16>(a.v | b.v)}; }
QKV_INLINE Mask operator~(Mask a) { return {static_cast<__mmask16>(~a.v)}; }

QKV_INLINE F32 set(float x) { return {_mm512_set1_ps(x)}; }
QKV_INLINE F32 zero() { return {_mm512_setzero_ps()}; }
QKV_INLINE F32 load(const float* p) { return {_mm512_loadu_ps(p)}; }
QKV_INLINE F32 load(const float* p, Mask m) { return {_mm512_maskz_loadu_ps(m.v, p)}; }
QKV_INLINE void store(float* p, F32 a) { _mm512_storeu_ps(p, a.v); }
QKV_INLINE void store(float* p, F32 a, Mask m) { _mm512_mask_storeu_ps(p, m.v, a.v); }
QKV_INLINE void stream(float* p, F32 a) { _mm512_stream_ps(p, a.v); }  // p aligned to 64 bytes

QKV_INLINE F32 operator+(F32 a, F32 b) { return {_mm512_add_ps(a.v, b.v)}; }
QKV_INLINE F32 operator-(F32 a, F32 b) { return {_mm512_sub_ps(a.v, b.v)}; }
QKV_INLINE F32 operator*(F32 a, F32 b) { return {_mm512_mul_ps(a.v, b.v)}; }
QKV_INLINE F32 operator/(F32 a, F32 b) { return {_mm512_div_ps(a.v, b.v)}; }
QKV_INLINE F32 fma(F32 a, F32 b, F32 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
QKV_INLINE F32 fnma(F32 a, F32 b, F32 c) { return {_mm512_fnmadd_ps(a.v, b.v, c.v)}; }
// 1 / a within 1 ULP for 2^-100 < |a| < 2^126: an estimate of 14 bits and one step of Newton's.
QKV_INLINE F32 reciprocal(F32 a) {
  const __m512 y = _mm512_rcp14_ps(a.v);
  return {_mm512_fmadd_ps(_mm512_fnmadd_ps(a.v, y, _mm512_set1_ps(1.0f)), y, y)};
}
QKV_INLINE F32 min(F32 a, F32 b) { return {_mm512_min_ps(a.v, b.v)}; }
QKV_INLINE F32 max(F32 a, F32 b) { return {_mm512_max_ps(a.v, b.v)}; }
QKV_INLINE F32 sqrt(F32 a) { return {_mm512_sqrt_ps(a.v)}; }
QKV_INLINE F32 round(F32 a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}

QKV_INLINE Mask operator<(F32 a, F32 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
QKV_INLINE Mask operator<=(F32 a, F32 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LE_OQ)}; }
QKV_INLINE Mask operator>(F32 a, F32 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ)}; }
QKV_INLINE Mask operator>=(F32 a, F32 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ)}; }
QKV_INLINE Mask operator==(F32 a, F32 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ)}; }
QKV_INLINE Mask operator!=(F32 a, F32 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_NEQ_UQ)}; }
QKV_INLINE F32 select(Mask m, F32 a, F32 b) { return {_mm512_mask_blend_ps(m.v, b.v, a.v)}; }
QKV_INLINE F32 keep(Mask m, F32 a) { return {_mm512_maskz_mov_ps(m.v, a.v)}; }

QKV_INLINE float first_lane(F32 a) { return _mm512_cvtss_f32(a.v); }
QKV_INLINE F32 swap_pairs(F32 a) { return {_mm512_permute_ps(a.v, 0xB1)}; }

QKV_INLINE float sum(F32 a) { return _mm512_reduce_add_ps(a.v); }
QKV_INLINE float hmax(F32 a) { return _mm512_reduce_max_ps(a.v); }
QKV_INLINE float hmin(F32 a) { return _mm512_reduce_min_ps(a.v); }

QKV_INLINE U32 set(std::uint32_t x) { return {_mm512_set1_epi32(static_cast<int>(x))}; }
QKV_INLINE U32 load(const std::uint32_t* p) { return {_mm512_loadu_si512(p)}; }
QKV_INLINE U32 load(const std::uint32_t* p, Mask m) { return {_mm512_maskz_loadu_epi32(m.v, p)}; }
QKV_INLINE void store(std::uint32_t* p, U32 a) { _mm512_storeu_si512(p, a.v); }
QKV_INLINE void store(std::uint32_t* p, U32 a, Mask m) { _mm512_mask_storeu_epi32(p, m.v, a.v); }
QKV_INLINE U32 lane_index() {
  return {_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)};
}
QKV_INLINE U32 operator+(U32 a, U32 b) { return {_mm512_add_epi32(a.v, b.v)}; }
QKV_INLINE U32 operator-(U32 a, U32 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
QKV_INLINE U32 operator&(U32 a, U32 b) { return {_mm512_and_si512(a.v, b.v)}; }
QKV_INLINE U32 operator|(U32 a, U32 b) { return {_mm512_or_si512(a.v, b.v)}; }
QKV_INLINE U32 operator^(U32 a, U32 b) { return {_mm512_xor_si512(a.v, b.v)}; }
template <int kBits>
QKV_INLINE U32 shift_left(U32 a) {
  return {_mm512_slli_epi32(a.v, kBits)};
}
template <int kBits>
QKV_INLINE U32 shift_right(U32 a) {
  return {_mm512_srli_epi32(a.v, kBits)};
}
QKV_INLINE Mask operator==(U32 a, U32 b) { return {_mm512_cmpeq_epi32_mask(a.v, b.v)}; }
QKV_INLINE Mask less_unsigned(U32 a, U32 b) { return {_mm512_cmplt_epu32_mask(a.v, b.v)}; }
QKV_INLINE Mask less_signed(U32 a, U32 b) { return {_mm512_cmplt_epi32_mask(a.v, b.v)}; }
QKV_INLINE U32 as_u32(F32 a) { return {_mm512_castps_si512(a.v)}; }
QKV_INLINE F32 as_f32(U32 a) { return {_mm512_castsi512_ps(a.v)}; }
QKV_INLINE U32 to_i32(F32 a) { return {_mm512_cvtps_epi32(a.v)}; }
QKV_INLINE F32 to_f32(U32 a) { return {_mm512_cvtepi32_ps(a.v)}; }

// Four rows: lane 4 q + i of r[j] becomes what lane 4 q + j of r[i] was. And one of its quads.
QKV_INLINE void transpose_quads(F32 (&r)[4]) {
  const __m512 a = _mm512_unpacklo_ps(r[0].v, r[1].v), b = _mm512_unpackhi_ps(r[0].v, r[1].v);
  const __m512 c = _mm512_unpacklo_ps(r[2].v, r[3].v), d = _mm512_unpackhi_ps(r[2].v, r[3].v);
  r[0].v = _mm512_shuffle_ps(a, c, 0x44);
  r[1].v = _mm512_shuffle_ps(a, c, 0xEE);
  r[2].v = _mm512_shuffle_ps(b, d, 0x44);
  r[3].v = _mm512_shuffle_ps(b, d, 0xEE);
}
QKV_INLINE void store_quad(float* p, F32 a, int q) {
  _mm_storeu_ps(p, q == 0   ? _mm512_castps512_ps128(a.v)
                   : q == 1 ? _mm512_extractf32x4_ps(a.v, 1)
                   : q == 2 ? _mm512_extractf32x4_ps(a.v, 2)
                            : _mm512_extractf32x4_ps(a.v, 3));
}

struct WideProduct {
  U32 high, low;
};
QKV_INLINE WideProduct mul_wide(U32 a, U32 b) {
  const __m512i even = _mm512_mul_epu32(a.v, b.v);
  const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(a.v, 32), _mm512_srli_epi64(b.v, 32));
  return {{_mm512_mask_blend_epi32(0xAAAA, _mm512_srli_epi64(even, 32), odd)},
          {_mm512_mask_blend_epi32(0xAAAA, even, _mm512_slli_epi64(odd, 32))}};
}

// 64-bit products of the even lanes; and the odd lanes in the place of the even ones.
QKV_INLINE U32 mul_even(U32 a, U32 b) { return {_mm512_mul_epu32(a.v, b.v)}; }
QKV_INLINE U32 odd_to_even(U32 a) { return {_mm512_shuffle_epi32(a.v, _MM_PERM_DDBB)}; }

// Flag i: the i-th 16-bit number is at least `limit`, 2 kLanes of them.
QKV_INLINE std::uint64_t at_least_16(U32 a, std::uint32_t limit) {
  return _mm512_cmpge_epu16_mask(a.v, _mm512_set1_epi16(static_cast<short>(limit)));
}

QKV_INLINE F32 abs(F32 a) { return {_mm512_abs_ps(a.v)}; }
QKV_INLINE F32 scale2(F32 x, F32 n) { return {_mm512_scalef_ps(x.v, n.v)}; }

QKV_INLINE F64 zero64() { return {_mm512_setzero_pd()}; }
QKV_INLINE F64 set(double x) { return {_mm512_set1_pd(x)}; }
QKV_INLINE F64 widen_low(F32 a) { return {_mm512_cvtps_pd(_mm512_castps512_ps256(a.v))}; }
QKV_INLINE F64 widen_high(F32 a) { return {_mm512_cvtps_pd(_mm512_extractf32x8_ps(a.v, 1))}; }
// kLanes / 2 floats.
QKV_INLINE F64 load_wide(const float* p) { return {_mm512_cvtps_pd(_mm256_loadu_ps(p))}; }
QKV_INLINE F64 operator+(F64 a, F64 b) { return {_mm512_add_pd(a.v, b.v)}; }
QKV_INLINE F64 operator-(F64 a, F64 b) { return {_mm512_sub_pd(a.v, b.v)}; }
QKV_INLINE F64 operator*(F64 a, F64 b) { return {_mm512_mul_pd(a.v, b.v)}; }
QKV_INLINE F64 fma(F64 a, F64 b, F64 c) { return {_mm512_fmadd_pd(a.v, b.v, c.v)}; }
QKV_INLINE double sum(F64 a) { return _mm512_reduce_add_pd(a.v); }

}  // namespace qkv::inline v0::kernels::QKV_ISA
