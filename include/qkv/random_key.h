// Key of dropout's random numbers: a pure function of where a number is used, so recomputation,
// resumption and any split over threads or ranks draw the same ones.
#pragma once

#include <cstdint>

namespace qkv::inline v0 {

// The number for (sample, token, channel) is word channel % 4 of philox(key, {channel / 4, token,
// sample, step}), sample taken modulo 2^32; for attention weights `channel` is the key position and
// `token` is head * 65536 + query (query modulo 65536), mixed with the query's upper bits. An
// element is dropped when number < p * 2^32.
struct RandomKey {
  std::uint64_t key = 0;   // hash of (seed, module path, which dropout of the module)
  std::uint32_t step = 0;  // training step
};

}  // namespace qkv::inline v0
