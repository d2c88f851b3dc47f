// Random inputs of benchmarks.
#pragma once

#include "qkv/tensor.h"

namespace qkv::inline v0::bench {

// Normal numbers, mean 0 and deviation 1: a pure function of the arguments.
Tensor random_tensor(const Shape& shape, std::uint64_t seed, std::uint64_t stream);

}  // namespace qkv::inline v0::bench
