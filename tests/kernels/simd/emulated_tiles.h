// The tile unit of AMX in plain C++; see kernels/simd/attention_tiles.h.
#pragma once

#include <cstdint>

namespace qkv::inline v0::kernels::QKV_ISA {
namespace {

// What the instructions do, after the description of TDPBF16PS: the products of the first and of
// the second numbers of all pairs are summed apart, and both sums are added to the tile. (The
// instruction takes denormal numbers as zero, which this leaves out.)
class EmulatedUnit {
 public:
  void begin() { is_configured_ = true; }
  void end() { is_configured_ = false; }
  template <int kTile>
  void clear() {
    for (float& x : tiles_[kTile]) x = 0;
  }
  template <int kTile>
  void load(const float* from, std::int64_t stride) {
    for (int r = 0; r < 16; ++r)
      __builtin_memcpy(tiles_[kTile] + 16 * r, from + r * stride, 16 * sizeof(float));
  }
  template <int kTile>
  void store(float* to, std::int64_t stride) {
    for (int r = 0; r < 16; ++r)
      __builtin_memcpy(to + r * stride, tiles_[kTile] + 16 * r, 16 * sizeof(float));
  }
  template <int kTo, int kLeft, int kRight>
  void multiply() {
    if (!is_configured_) __builtin_trap();
    for (int m = 0; m < 16; ++m)
      for (int n = 0; n < 16; ++n) {
        float first = 0, second = 0;
        for (int k = 0; k < 16; ++k) {
          const std::uint32_t a = word(kLeft, m, k), b = word(kRight, k, n);
          first += number(a << 16) * number(b << 16);
          second += number(a & 0xFFFF0000u) * number(b & 0xFFFF0000u);
        }
        tiles_[kTo][16 * m + n] += first + second;
      }
  }

 private:
  std::uint32_t word(int tile, int row, int column) const {
    std::uint32_t bits = 0;
    __builtin_memcpy(&bits, tiles_[tile] + 16 * row + column, sizeof(bits));
    return bits;
  }
  static float number(std::uint32_t bits) {
    float x = 0;
    __builtin_memcpy(&x, &bits, sizeof(x));
    return x;
  }

  float tiles_[8][256];
  bool is_configured_ = false;
};

}  // namespace
}  // namespace qkv::inline v0::kernels::QKV_ISA
