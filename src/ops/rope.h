// Rotary positions (Su et al. 2021).
#pragma once

#include <cstdint>
#include <span>

#include "qkv/tensor.h"

namespace qkv::inline v0::ops {

// kHalfSplit pairs channel i with i + D/2 (Hugging Face files), kInterleaved pairs 2i with 2i + 1
// (GGUF).
enum class RopePairing { kHalfSplit, kInterleaved };

struct RopeOptions {
  double base = 10000;
  RopePairing pairing = RopePairing::kHalfSplit;
};

// Rotates x: [T, H, D] (any strides over T and H, D contiguous, D even) in place by the angles
// positions[t] * base^(-2 i / D), formed in double. fp32, fp64. inverse = true is the gradient:
// rotation by the negative angle.
void rope_inplace(const Tensor& x, std::span<const std::int32_t> positions,
                  const RopeOptions& options, bool inverse = false);

}  // namespace qkv::inline v0::ops
