// Rows of 16-bit types as FlashTable::widen and narrow take them.
#pragma once

#include "qkv/dtype.h"

#include "kernels/attention_flash.h"

namespace qkv::inline v0::kernels {

inline NarrowType narrow_type(const BFloat16*) { return NarrowType::kBFloat16; }
inline NarrowType narrow_type(const Float16*) { return NarrowType::kFloat16; }

template <class T>
NarrowRows narrow_rows(const T* data, std::int64_t stride) {
  return {narrow_type(data), &data->bits, stride};
}
template <class T>
NarrowOutput narrow_output(T* data, std::int64_t stride) {
  return {narrow_type(data), &data->bits, stride};
}

}  // namespace qkv::inline v0::kernels
