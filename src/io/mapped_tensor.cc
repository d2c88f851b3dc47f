#include "io/mapped_tensor.h"

#include <cstring>

namespace qkv::inline v0::io {

Tensor mapped_tensor(const std::shared_ptr<const MappedFile>& file, std::uint64_t begin,
                     const Shape& shape, DType dtype) {
  constexpr std::uint64_t kPage = 4096, kSpare = 64;  // kernels may read this much behind a tensor
  const std::byte* bytes = file->data() + begin;
  const std::uint64_t size = static_cast<std::uint64_t>(shape.numel()) * dtype_size(dtype);
  const bool aligned = begin % dtype_size(dtype) == 0;
  const std::uint64_t mapped_end = (file->size() + kPage - 1) / kPage * kPage;
  const bool readable_behind = begin + size + kSpare <= mapped_end;
  if (aligned && readable_behind && size > 0)
    return Tensor::wrap(const_cast<std::byte*>(bytes), shape, dtype, file);
  Tensor copy = Tensor::empty(shape, dtype);
  if (size > 0) std::memcpy(copy.raw(), bytes, size);
  return copy;
}

}  // namespace qkv::inline v0::io
