// The tile unit of AMX: eight tiles of 16 rows of 64 bytes.
//
// The instructions are written out, since the intrinsics of GCC 12 do not say that tile loads read
// memory: stores before them could be dropped or moved behind them.
#pragma once

#include <cstdint>

#include "kernels/simd/vec.h"

namespace qkv::inline v0::kernels::QKV_ISA {

namespace {

// Rows of a tile in memory are `stride` floats apart.
struct AmxUnit {
  // The configuration is held from begin to end alone.
  QKV_INLINE void begin() {
    struct alignas(64) Configuration {
      std::uint8_t palette = 1, first_row = 0, reserved[14] = {};
      std::uint16_t row_bytes[16] = {};
      std::uint8_t rows[16] = {};
    } configuration;
    for (int i = 0; i < 8; ++i) {
      configuration.row_bytes[i] = 64;
      configuration.rows[i] = 16;
    }
    asm volatile("ldtilecfg %0" : : "m"(configuration) : "memory");
  }
  QKV_INLINE void end() { asm volatile("tilerelease" : : : "memory"); }

  template <int kTile>
  QKV_INLINE void clear() {
    asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
  }
  template <int kTile>
  QKV_INLINE void load(const float* from, std::int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2"
                 :
                 : "r"(from), "r"(stride * 4), "i"(kTile)
                 : "memory");
  }
  template <int kTile>
  QKV_INLINE void store(float* to, std::int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)"
                 :
                 : "r"(to), "r"(stride * 4), "i"(kTile)
                 : "memory");
  }
  template <int kTo, int kLeft, int kRight>
  QKV_INLINE void multiply() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kTo), "i"(kLeft), "i"(kRight));
  }
};

}  // namespace
}  // namespace qkv::inline v0::kernels::QKV_ISA
