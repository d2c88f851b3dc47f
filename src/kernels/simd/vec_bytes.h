// Small integers and 16-bit floats to lanes. Part of vec.h's frame, for quantised weights.
#pragma once

#include <cstdint>

#include "kernels/simd/vec.h"

namespace qkv::inline v0::kernels::QKV_ISA {

// kLanes bytes, widened without sign.
QKV_INLINE U32 load_bytes(const std::uint8_t* p) {
#if defined(QKV_ISA_avx512)
  return {_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
#elif defined(QKV_ISA_avx2)
  return {_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)))};
#else
  return {NativeU32{p[0], p[1], p[2], p[3]}};
#endif
}

// Bytes first .. first + kLanes of the sixteen in four words, widened without sign. Not through
// memory: a load of what several stores have just written waits for all of them.
QKV_INLINE U32 bytes_of_words(const std::uint32_t (&w)[4], [[maybe_unused]] int first) {
#if defined(QKV_ISA_avx512)
  const auto at = [&w](int i) QKV_BODY { return static_cast<int>(w[i]); };
  return {_mm512_cvtepu8_epi32(_mm_setr_epi32(at(0), at(1), at(2), at(3)))};
#elif defined(QKV_ISA_avx2)
  const std::uint64_t pair = w[first / 4] | static_cast<std::uint64_t>(w[first / 4 + 1]) << 32;
  return {_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<long long>(pair)))};
#else
  const std::uint32_t word = w[first / 4];
  return {NativeU32{word & 0xFF, word >> 8 & 0xFF, word >> 16 & 0xFF, word >> 24}};
#endif
}

// kLanes signed bytes as floats.
QKV_INLINE F32 load_signed_bytes(const std::uint8_t* p) {
#if defined(QKV_ISA_avx512)
  return to_f32({_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))});
#elif defined(QKV_ISA_avx2)
  return to_f32({_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)))});
#else
  const auto at = [p](int i)
                      QKV_BODY { return static_cast<float>(static_cast<std::int8_t>(p[i])); };
  return {NativeF32{at(0), at(1), at(2), at(3)}};
#endif
}

// kLanes bf16 numbers.
QKV_INLINE F32 load_bfloat16(const std::uint8_t* p) {
#if defined(QKV_ISA_avx512)
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return as_f32(shift_left<16>({_mm512_cvtepu16_epi32(bits)}));
#elif defined(QKV_ISA_avx2)
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return as_f32(shift_left<16>({_mm256_cvtepu16_epi32(bits)}));
#else
  std::uint16_t bits[kLanes];
  __builtin_memcpy(bits, p, sizeof(bits));
  return as_f32(shift_left<16>({NativeU32{bits[0], bits[1], bits[2], bits[3]}}));
#endif
}

// kLanes fp16 numbers; `halves` holds the values of all of them.
QKV_INLINE F32 load_float16(const std::uint8_t* p, [[maybe_unused]] const float* halves) {
#if defined(QKV_ISA_avx512)
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
#elif defined(QKV_ISA_avx2)
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
#else
  std::uint16_t bits[kLanes];
  __builtin_memcpy(bits, p, sizeof(bits));
  return {NativeF32{halves[bits[0]], halves[bits[1]], halves[bits[2]], halves[bits[3]]}};
#endif
}

// The low four bits of each lane as a number from kFirst on. AVX-512 looks them up, and the other
// bits do not matter to it.
template <int kFirst>
QKV_INLINE F32 low_nibbles(U32 a) {
#if defined(QKV_ISA_avx512)
  constexpr float f = kFirst;
  const __m512 table = _mm512_setr_ps(f, f + 1, f + 2, f + 3, f + 4, f + 5, f + 6, f + 7, f + 8,
                                      f + 9, f + 10, f + 11, f + 12, f + 13, f + 14, f + 15);
  return {_mm512_permutexvar_ps(a.v, table)};
#else
  const F32 q = to_f32(a & set(15u));
  if constexpr (kFirst == 0) return q;
  return q + set(static_cast<float>(kFirst));
#endif
}

}  // namespace qkv::inline v0::kernels::QKV_ISA
