// The vector functions of every instruction set behind plain pointers, for tests.
#pragma once

#include <cstdint>

#include "kernels/simd_tables.h"

namespace qkv::inline v0::kernels {

struct VectorProbe {
  int lanes;
  // y[i] = f(x[i]); n is a multiple of 16.
  void (*exp)(const float* x, float* y, std::int64_t n);
  void (*exp2)(const float* x, float* y, std::int64_t n);
  void (*exp2_short)(const float* x, float* y, std::int64_t n);
  void (*sigmoid)(const float* x, float* y, std::int64_t n);
  void (*normal_tail)(const float* x, float* y, std::int64_t n);
  void (*tanh)(const float* x, float* y, std::int64_t n);
  void (*round)(const float* x, float* y, std::int64_t n);
  // One bit per channel, kept ones set, for 4 * lanes channels from 8 * block on.
  // Two draws.
  void (*dropout_keep)(std::uint64_t key, std::uint32_t block, std::uint32_t token,
                       std::uint32_t sample, std::uint32_t step, std::uint32_t threshold,
                       std::uint64_t* kept);
  // Sum, largest and smallest of the first n <= lanes values; nothing behind them is read.
  void (*reduce)(const float* x, std::int64_t n, float* sum, float* largest, float* smallest);
  // Copies the first n <= lanes values and leaves the rest of y alone.
  void (*copy_some)(const float* x, float* y, std::int64_t n);
  // y [lanes, 4] = x [4, lanes] transposed.
  void (*transpose)(const float* x, float* y);
};

QKV_SIMD_TABLE(VectorProbe, kVectorProbe)

}  // namespace qkv::inline v0::kernels
