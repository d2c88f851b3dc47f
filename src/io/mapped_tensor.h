// Tensors over a memory map.
#pragma once

#include <cstdint>
#include <memory>

#include "qkv/tensor.h"

#include "base/file.h"

namespace qkv::inline v0::io {

// The bytes of `file` from `begin` on as a tensor: a read-only view where the data is aligned for
// its type and kernels may read a little behind it, else a copy. The range lies in the file.
Tensor mapped_tensor(const std::shared_ptr<const MappedFile>& file, std::uint64_t begin,
                     const Shape& shape, DType dtype);

}  // namespace qkv::inline v0::io
