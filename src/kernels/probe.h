// Loops that do nothing but load one unit of the processor: the yardsticks of `qkv bench`.
#pragma once

#include <cstdint>

namespace qkv::inline v0::kernels {

// Arrays that one pass over memory touches, `n` floats each, n a multiple of kProbeBlock.
inline constexpr std::int64_t kProbeBlock = 64;
inline constexpr int kMaxProbeArrays = 4;
struct ProbeArrays {
  const float* read[kMaxProbeArrays] = {};  // only read
  float* update[kMaxProbeArrays] = {};      // read and written
  float* write[kMaxProbeArrays] = {};       // only written
  int reads = 0, updates = 0,
      writes = 0;  // at least one; at most kMaxProbeArrays in all of reads + updates
  std::int64_t n = 0;
};

struct ProbeKernels {
  // Runs `rounds` of multiply_adds_per_round multiply-adds (two operations each) in registers.
  // Returns a number that depends on all of them.
  float (*multiply_add)(std::int64_t rounds);
  std::int64_t multiply_adds_per_round;
  // Sum of e^x over n floats, n a multiple of kProbeBlock.
  float (*exponential)(const float* x, std::int64_t n);
  // Reads and writes the arrays once, with as little arithmetic as there can be.
  float (*pass)(const ProbeArrays& arrays);
};

// Those of the instruction set in use.
const ProbeKernels& probe_kernels();
// multiply_add alone, of products of bf16: of tiles, or of dot products in registers. Null where
// the instruction set in use has none.
const ProbeKernels* bf16_probe_kernels(bool tiles);

}  // namespace qkv::inline v0::kernels
