// Group-quantised blocks by their definition.
#pragma once

#include <cstdint>

#include "base/block_type.h"

namespace qkv::inline v0::kernels::reference {

// The n elements, whole blocks, that the blocks stand for. Products in fp32, rounded once per
// operation as in ggml's definition of the types.
// Source: https://github.com/ggml-org/ggml, the dequantize_row functions.
void dequantize(BlockType type, const std::uint8_t* blocks, std::int64_t n, float* y);

}  // namespace qkv::inline v0::kernels::reference
