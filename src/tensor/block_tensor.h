// A matrix in group-quantised blocks.
#pragma once

#include "qkv/tensor.h"

#include "base/block_type.h"

namespace qkv::inline v0 {

// Copying shares the storage, as with Tensor.
struct BlockTensor {
  BlockType type = BlockType::kQ80;
  Shape shape;   // in elements; the last extent is a multiple of the block's elements
  Tensor bytes;  // uint8, contiguous: [rows, bytes of a row]; rows: product of the other extents
};

}  // namespace qkv::inline v0
