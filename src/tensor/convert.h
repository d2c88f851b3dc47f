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

}  // namespace qkv::inline v0
