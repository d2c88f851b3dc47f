// Rows of bf16 and fp16 to fp32 and back.
#pragma once

#include "kernels/simd/attention_pack.h"

namespace qkv::inline v0::kernels::QKV_ISA {

constexpr std::int64_t kNarrowAhead = 16;  // rows that are fetched ahead

// The first `count` 16-bit numbers, one per lane; nothing behind them is touched.
#if defined(QKV_ISA_avx512)
QKV_INLINE U32 load_narrow(const std::uint16_t* p, std::int64_t count) {
  return {_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(first_lanes(count).v, p))};
}
QKV_INLINE void store_narrow(std::uint16_t* p, U32 a, std::int64_t count) {
  _mm256_mask_storeu_epi16(p, first_lanes(count).v, _mm512_cvtepi32_epi16(a.v));
}
#else
QKV_INLINE U32 load_narrow(const std::uint16_t* p, std::int64_t count) {
#if defined(QKV_ISA_avx2)
  if (count >= kLanes)
    return {_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
#endif
  std::uint32_t lanes[kLanes] = {};
  for (std::int64_t i = 0; i < smaller(count, kLanes); ++i) lanes[i] = p[i];
  return load(lanes);
}
QKV_INLINE void store_narrow(std::uint16_t* p, U32 a, std::int64_t count) {
  std::uint32_t lanes[kLanes];
  store(lanes, a);
  for (std::int64_t i = 0; i < smaller(count, kLanes); ++i)
    p[i] = static_cast<std::uint16_t>(lanes[i]);
}
#endif

QKV_INLINE U32 select_bits(Mask m, U32 a, U32 b) { return as_u32(select(m, as_f32(a), as_f32(b))); }

// fp16: exponent and mantissa moved into place are the number times 2^-112, denormals too.
QKV_INLINE F32 widen_half(U32 half) {
  const U32 size = half & set(0x7FFFu);
  const F32 number = as_f32(shift_left<13>(size)) * set(0x1p112f);
  const U32 special = shift_left<13>(size) | set(0x7F800000u);  // infinity and NaN
  const U32 value = select_bits(less_unsigned(set(0x7BFFu), size), special, as_u32(number));
  return as_f32(value | shift_left<16>(half & set(0x8000u)));
}

QKV_INLINE U32 narrow_half(F32 x) {
  const U32 word = as_u32(x), size = word & set(0x7FFFFFFFu);
  const U32 sign = shift_right<16>(word) & set(0x8000u);
  // Below 2^-14 adding 0.5 rounds at 2^-24, the step of the denormals; else the bits that go away
  // round the others, which may carry into infinity as it should.
  const U32 small = as_u32(as_f32(size) + set(0.5f)) - set(0x3F000000u);
  const U32 odd = shift_right<13>(size) & set(1u);
  const U32 normal = shift_right<13>(size + set(0xFFFu) + odd - set(0x38000000u));
  U32 half = select_bits(less_unsigned(size, set(0x38800000u)), small, normal);
  half = select_bits(less_unsigned(size, set(0x47800000u)), half, set(0x7C00u));
  half = select_bits(less_unsigned(set(0x7F800000u), size), set(0x7E00u), half);
  return half | sign;
}

QKV_INLINE U32 narrow_brain(F32 x) {
  const U32 word = as_u32(x);
  const U32 rounded = shift_right<16>(word + set(0x7FFFu) + (shift_right<16>(word) & set(1u)));
  return select_bits(x != x, shift_right<16>(word) | set(0x40u), rounded);
}

QKV_INLINE F32 widen(NarrowType type, U32 a) {
  return type == NarrowType::kBFloat16 ? as_f32(shift_left<16>(a)) : widen_half(a);
}

[[maybe_unused, gnu::noinline]] static void widen_rows(NarrowRows from, std::int64_t count,
                                                       std::int64_t depth, float* to) {
  for (std::int64_t r = 0; r < count; ++r) {
    const std::uint16_t* row = from.data + r * from.stride;
    for (std::int64_t d = 0; d < depth; d += 32)
      __builtin_prefetch(row + kNarrowAhead * from.stride + d);
    for (std::int64_t d = 0; d < depth; d += kLanes)
      store(to + r * depth + d, widen(from.type, load_narrow(row + d, depth - d)),
            first_lanes(depth - d));
  }
}

[[maybe_unused, gnu::noinline]] static void narrow_rows(const float* from, std::int64_t count,
                                                        std::int64_t depth, NarrowOutput to) {
  for (std::int64_t r = 0; r < count; ++r)
    for (std::int64_t d = 0; d < depth; d += kLanes) {
      const F32 x = load(from + r * depth + d, first_lanes(depth - d));
      store_narrow(to.data + r * to.stride + d,
                   to.type == NarrowType::kBFloat16 ? narrow_brain(x) : narrow_half(x), depth - d);
    }
}

}  // namespace qkv::inline v0::kernels::QKV_ISA
