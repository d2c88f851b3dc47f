// Key of dropout's random numbers: a pure function of where a number is used, so recomputation,
// resumption and any split over threads or ranks draw the same ones.
#pragma once

#include <cstdint>

namespace qkv::inline v0 {

// Activations: the number for (sample, token, channel) is the 16-bit half channel % 2 of word
// channel % 8 / 2 of philox(key, {channel / 8, token, sample, step}), sample taken modulo 2^32. An
// element is dropped when number < round(65536 p); kept ones are scaled by the exact share that is
// kept. Attention weights: the 32-bit word `key position` % 4 of philox(key', {key position / 4,
// head
// * 65536 + query (modulo 65536), sample, step}), key' mixed with the query's upper bits; dropped
// when number < 2^32 p.
struct RandomKey {
  std::uint64_t key = 0;   // hash of (seed, module path, which dropout of the module)
  std::uint32_t step = 0;  // training step
};

}  // namespace qkv::inline v0
