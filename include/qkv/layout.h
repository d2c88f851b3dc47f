// Ragged batches: B sequences packed without padding into T tokens.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "qkv/version.h"

namespace qkv::inline v0 {

// Sequence b is rows starts[b] .. starts[b+1] of a [T, ...] tensor. Sequences of length 0 are
// allowed.
struct QKV_API RaggedLayout {
  std::vector<std::int32_t> starts{0};  // B + 1 values, non-decreasing, starts[0] == 0
  std::vector<std::int32_t>
      positions;  // T values: index of each token in its own sequence (plus an offset, when cached)
  std::vector<std::int64_t> samples;  // B global sample indices: the random key of dropout

  std::int64_t batch() const { return static_cast<std::int64_t>(starts.size()) - 1; }
  std::int64_t tokens() const { return starts.back(); }
  std::int64_t length(std::int64_t b) const {
    return starts[static_cast<std::size_t>(b) + 1] - starts[static_cast<std::size_t>(b)];
  }
  std::int64_t max_length() const;

  // Positions 0.. in each sequence and samples 0..B-1. ShapeError for a negative length.
  static RaggedLayout from_lengths(std::span<const std::int64_t> lengths);
};

}  // namespace qkv::inline v0
