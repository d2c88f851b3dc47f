// Plain C++ with the compiler's vector type: 4 lanes, any processor. See vec.h. fma rounds twice.
#pragma once

#include <cstdint>

namespace qkv::inline v0::kernels::QKV_ISA {

constexpr int kLanes = 4;
constexpr int kVectorRegisters = 16;

using NativeF32 [[gnu::vector_size(16)]] = float;
using NativeU32 [[gnu::vector_size(16)]] = std::uint32_t;
using NativeI32 [[gnu::vector_size(16)]] = std::int32_t;
using NativeF64 [[gnu::vector_size(16)]] = double;

struct F32 {
  NativeF32 v;
};
struct U32 {
  NativeU32 v;
};
struct F64 {
  NativeF64 v;
};
struct Mask {
  NativeI32 v;
};

QKV_INLINE Mask first_lanes(std::int64_t n) {
  const std::int32_t count = n >= 4 ? 4 : n <= 0 ? 0 : static_cast<std::int32_t>(n);
  return {NativeI32{0, 1, 2, 3} < NativeI32{count, count, count, count}};
}
QKV_INLINE Mask mask_from_bits(std::uint32_t b) {
  const NativeU32 bit = {1, 2, 4, 8};
  return {(NativeU32{b, b, b, b} & bit) == bit};
}
QKV_INLINE std::uint32_t bits(Mask m) {
  const NativeI32 bit = m.v & NativeI32{1, 2, 4, 8};
  return static_cast<std::uint32_t>(bit[0] | bit[1] | bit[2] | bit[3]);
}
QKV_INLINE bool any(Mask m) { return bits(m) != 0; }
QKV_INLINE bool all(Mask m) { return bits(m) == 0xF; }
QKV_INLINE Mask operator&(Mask a, Mask b) { return {a.v & b.v}; }
QKV_INLINE Mask operator|(Mask a, Mask b) { return {a.v | b.v}; }
QKV_INLINE Mask operator~(Mask a) { return {~a.v}; }

QKV_INLINE U32 as_u32(F32 a) { return {reinterpret_cast<NativeU32>(a.v)}; }
QKV_INLINE F32 as_f32(U32 a) { return {reinterpret_cast<NativeF32>(a.v)}; }

QKV_INLINE F32 set(float x) { return {NativeF32{x, x, x, x}}; }
QKV_INLINE F32 zero() { return {NativeF32{}}; }
QKV_INLINE F32 load(const float* p) {
  F32 a;
  __builtin_memcpy(&a.v, p, sizeof(a.v));
  return a;
}
QKV_INLINE F32 load(const float* p, Mask m) {
  F32 a = zero();
  for (int i = 0; i < kLanes; ++i)
    if (m.v[i]) a.v[i] = p[i];
  return a;
}
QKV_INLINE void store(float* p, F32 a) { __builtin_memcpy(p, &a.v, sizeof(a.v)); }
QKV_INLINE void store(float* p, F32 a, Mask m) {
  for (int i = 0; i < kLanes; ++i)
    if (m.v[i]) p[i] = a.v[i];
}
QKV_INLINE void stream(float* p, F32 a) { store(p, a); }

QKV_INLINE F32 operator+(F32 a, F32 b) { return {a.v + b.v}; }
QKV_INLINE F32 operator-(F32 a, F32 b) { return {a.v - b.v}; }
QKV_INLINE F32 operator*(F32 a, F32 b) { return {a.v * b.v}; }
QKV_INLINE F32 operator/(F32 a, F32 b) { return {a.v / b.v}; }
QKV_INLINE F32 fma(F32 a, F32 b, F32 c) { return {a.v * b.v + c.v}; }
QKV_INLINE F32 fnma(F32 a, F32 b, F32 c) { return {c.v - a.v * b.v}; }
QKV_INLINE F32 reciprocal(F32 a) { return {1.0f / a.v}; }
QKV_INLINE F32 select(Mask m, F32 a, F32 b) { return {m.v ? a.v : b.v}; }
QKV_INLINE F32 keep(Mask m, F32 a) {
  return as_f32({as_u32(a).v & reinterpret_cast<NativeU32>(m.v)});
}
QKV_INLINE F32 min(F32 a, F32 b) { return {a.v < b.v ? a.v : b.v}; }
QKV_INLINE F32 max(F32 a, F32 b) { return {a.v > b.v ? a.v : b.v}; }
QKV_INLINE F32 abs(F32 a) { return as_f32({as_u32(a).v & 0x7FFFFFFFu}); }
QKV_INLINE F32 sqrt(F32 a) {
  for (int i = 0; i < kLanes; ++i) a.v[i] = __builtin_sqrtf(a.v[i]);
  return a;
}
// Adding and subtracting 2^23 to the absolute value rounds to even; larger ones have no fraction.
QKV_INLINE F32 round(F32 a) {
  const F32 size = abs(a), magic = set(8388608.0f);
  const F32 rounded = as_f32({as_u32((size + magic) - magic).v | (as_u32(a).v & 0x80000000u)});
  return {size.v < magic.v ? rounded.v : a.v};
}

QKV_INLINE Mask operator<(F32 a, F32 b) { return {a.v < b.v}; }
QKV_INLINE Mask operator<=(F32 a, F32 b) { return {a.v <= b.v}; }
QKV_INLINE Mask operator>(F32 a, F32 b) { return {a.v > b.v}; }
QKV_INLINE Mask operator>=(F32 a, F32 b) { return {a.v >= b.v}; }
QKV_INLINE Mask operator==(F32 a, F32 b) { return {a.v == b.v}; }
QKV_INLINE Mask operator!=(F32 a, F32 b) { return {a.v != b.v}; }

QKV_INLINE float first_lane(F32 a) { return a.v[0]; }
QKV_INLINE F32 swap_pairs(F32 a) { return {NativeF32{a.v[1], a.v[0], a.v[3], a.v[2]}}; }

QKV_INLINE float sum(F32 a) { return (a.v[0] + a.v[2]) + (a.v[1] + a.v[3]); }
QKV_INLINE float hmax(F32 a) {
  const float x = a.v[0] > a.v[2] ? a.v[0] : a.v[2], y = a.v[1] > a.v[3] ? a.v[1] : a.v[3];
  return x > y ? x : y;
}
QKV_INLINE float hmin(F32 a) {
  const float x = a.v[0] < a.v[2] ? a.v[0] : a.v[2], y = a.v[1] < a.v[3] ? a.v[1] : a.v[3];
  return x < y ? x : y;
}

QKV_INLINE U32 set(std::uint32_t x) { return {NativeU32{x, x, x, x}}; }
QKV_INLINE U32 load(const std::uint32_t* p) {
  U32 a;
  __builtin_memcpy(&a.v, p, sizeof(a.v));
  return a;
}
QKV_INLINE U32 load(const std::uint32_t* p, Mask m) {
  U32 a = set(0u);
  for (int i = 0; i < kLanes; ++i)
    if (m.v[i]) a.v[i] = p[i];
  return a;
}
QKV_INLINE void store(std::uint32_t* p, U32 a) { __builtin_memcpy(p, &a.v, sizeof(a.v)); }
QKV_INLINE void store(std::uint32_t* p, U32 a, Mask m) {
  for (int i = 0; i < kLanes; ++i)
    if (m.v[i]) p[i] = a.v[i];
}
QKV_INLINE U32 lane_index() { return {NativeU32{0, 1, 2, 3}}; }
QKV_INLINE U32 operator+(U32 a, U32 b) { return {a.v + b.v}; }
QKV_INLINE U32 operator-(U32 a, U32 b) { return {a.v - b.v}; }
QKV_INLINE U32 operator&(U32 a, U32 b) { return {a.v & b.v}; }
QKV_INLINE U32 operator|(U32 a, U32 b) { return {a.v | b.v}; }
QKV_INLINE U32 operator^(U32 a, U32 b) { return {a.v ^ b.v}; }
template <int kBits>
QKV_INLINE U32 shift_left(U32 a) {
  return {a.v << kBits};
}
template <int kBits>
QKV_INLINE U32 shift_right(U32 a) {
  return {a.v >> kBits};
}
QKV_INLINE Mask operator==(U32 a, U32 b) { return {a.v == b.v}; }
QKV_INLINE Mask less_unsigned(U32 a, U32 b) { return {a.v < b.v}; }
QKV_INLINE Mask less_signed(U32 a, U32 b) {
  return {reinterpret_cast<NativeI32>(a.v) < reinterpret_cast<NativeI32>(b.v)};
}
QKV_INLINE U32 to_i32(F32 a) {
  return {reinterpret_cast<NativeU32>(__builtin_convertvector(round(a).v, NativeI32))};
}
QKV_INLINE F32 to_f32(U32 a) {
  return {__builtin_convertvector(reinterpret_cast<NativeI32>(a.v), NativeF32)};
}

// As in the wider ones: here one quad is all.
QKV_INLINE void transpose_quads(F32 (&r)[4]) {
  const NativeF32 a = __builtin_shufflevector(r[0].v, r[1].v, 0, 4, 1, 5);
  const NativeF32 b = __builtin_shufflevector(r[0].v, r[1].v, 2, 6, 3, 7);
  const NativeF32 c = __builtin_shufflevector(r[2].v, r[3].v, 0, 4, 1, 5);
  const NativeF32 d = __builtin_shufflevector(r[2].v, r[3].v, 2, 6, 3, 7);
  r[0].v = __builtin_shufflevector(a, c, 0, 1, 4, 5);
  r[1].v = __builtin_shufflevector(a, c, 2, 3, 6, 7);
  r[2].v = __builtin_shufflevector(b, d, 0, 1, 4, 5);
  r[3].v = __builtin_shufflevector(b, d, 2, 3, 6, 7);
}
QKV_INLINE void store_quad(float* p, F32 a, int) { store(p, a); }

struct WideProduct {
  U32 high, low;
};
QKV_INLINE WideProduct mul_wide(U32 a, U32 b) {
  WideProduct r;
  r.low.v = a.v * b.v;
  for (int i = 0; i < kLanes; ++i)
    r.high.v[i] = static_cast<std::uint32_t>((std::uint64_t{a.v[i]} * b.v[i]) >> 32);
  return r;
}

// In two steps, so that results down to the denormals round once.
QKV_INLINE F32 scale2(F32 x, F32 n) {
  const NativeI32 whole = reinterpret_cast<NativeI32>(to_i32(n).v);
  const NativeI32 half = whole >> 1;
  const NativeI32 first = (half + 127) << 23, second = (whole - half + 127) << 23;
  return {x.v * reinterpret_cast<NativeF32>(first) * reinterpret_cast<NativeF32>(second)};
}

QKV_INLINE F64 zero64() { return {NativeF64{}}; }
QKV_INLINE F64 set(double x) { return {NativeF64{x, x}}; }
QKV_INLINE F64 widen_low(F32 a) { return {NativeF64{a.v[0], a.v[1]}}; }
QKV_INLINE F64 widen_high(F32 a) { return {NativeF64{a.v[2], a.v[3]}}; }
// kLanes / 2 floats.
QKV_INLINE F64 load_wide(const float* p) { return {NativeF64{p[0], p[1]}}; }
QKV_INLINE F64 operator+(F64 a, F64 b) { return {a.v + b.v}; }
QKV_INLINE F64 operator-(F64 a, F64 b) { return {a.v - b.v}; }
QKV_INLINE F64 operator*(F64 a, F64 b) { return {a.v * b.v}; }
QKV_INLINE F64 fma(F64 a, F64 b, F64 c) { return {a.v * b.v + c.v}; }
QKV_INLINE double sum(F64 a) { return a.v[0] + a.v[1]; }

}  // namespace qkv::inline v0::kernels::QKV_ISA
