// Conversions between bf16/fp16 storage and fp32, round to nearest even; NaN stays NaN. Scalar and
// exact.
#pragma once

#include <bit>
#include <cstdint>

#include "qkv/dtype.h"

namespace qkv::inline v0 {

inline float to_float(BFloat16 x) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16);
}

inline BFloat16 to_bfloat16(float x) {
  std::uint32_t u = std::bit_cast<std::uint32_t>(x);
  if ((u & 0x7FFFFFFFu) > 0x7F800000u) return {static_cast<std::uint16_t>((u >> 16) | 0x40)};
  u += 0x7FFF + ((u >> 16) & 1);
  return {static_cast<std::uint16_t>(u >> 16)};
}

float to_float(Float16 x);
Float16 to_float16(float x);

// Any floating element type to double and back.
inline double to_double(double x) { return x; }
inline double to_double(float x) { return static_cast<double>(x); }
inline double to_double(BFloat16 x) { return static_cast<double>(to_float(x)); }
inline double to_double(Float16 x) { return static_cast<double>(to_float(x)); }

template <class T>
T from_double(double x) {
  return static_cast<T>(x);
}
template <>
inline BFloat16 from_double<BFloat16>(double x) {
  return to_bfloat16(static_cast<float>(x));
}
template <>
inline Float16 from_double<Float16>(double x) {
  return to_float16(static_cast<float>(x));
}

}  // namespace qkv::inline v0
