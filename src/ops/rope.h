// Rotary positions (Su et al. 2021).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "qkv/tensor.h"

namespace qkv::inline v0::ops {

// kHalfSplit pairs channel i with i + D/2 (Hugging Face files), kInterleaved pairs 2i with 2i + 1
// (GGUF).
enum class RopePairing { kHalfSplit, kInterleaved };

// How frequencies are changed for texts longer than those of the training. Names and formulas are
// those of config.json's rope_scaling:
//   linear   f_i / factor
//   dynamic  base * (factor n / positions - (factor - 1))^(d / (d - 2)) once the text's length n is
//            above `positions`
//   yarn     between f_i and f_i / factor by a ramp over the channels (Peng et al. 2023)
//   llama3   the same by a ramp over the wavelengths (Llama 3.1)
enum class RopeScalingKind { kNone, kLinear, kDynamic, kYarn, kLlama3 };
struct RopeScaling {
  RopeScalingKind kind = RopeScalingKind::kNone;
  double factor = 1;
  std::int64_t positions = 0;            // of the training: dynamic, yarn, llama3
  double beta_fast = 32, beta_slow = 1;  // yarn: turns over the training's length at both ends
  bool whole_channels = true;            // yarn: the ramp starts and ends at whole channels
  double magnitude = 1;                  // yarn: factor of cosines and sines
  double low_frequency = 1, high_frequency = 4;  // llama3: turns at both ends of the ramp
};
// The factor of cosines and sines that YaRN takes where the file names none: 0.1 ln(factor) + 1.
double yarn_magnitude(double factor);

struct RopeOptions {
  double base = 10000;
  RopePairing pairing = RopePairing::kHalfSplit;
  std::int64_t channels = 0;  // the first d of each head are rotated, in pairs; 0: all D
  RopeScaling scaling = {};
};

// base^(-2 i / d) for i < d / 2, scaled; in double. length: of the text, which only dynamic scaling
// asks for.
std::vector<double> rope_frequencies(const RopeOptions& options, std::int64_t d,
                                     std::int64_t length);

// Rotates x: [T, H, D] (any strides over T and H, D contiguous, D even) in place by the angles
// positions[t] * rope_frequencies()[i], formed in double. fp32, fp64. inverse = true is the
// gradient: rotation by the negative angle. Dynamic scaling takes the highest position + 1 as the
// text's length: one call per text.
void rope_inplace(const Tensor& x, std::span<const std::int32_t> positions,
                  const RopeOptions& options, bool inverse = false);

}  // namespace qkv::inline v0::ops
