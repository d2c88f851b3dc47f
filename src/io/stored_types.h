// The element types of safetensors files, and how those without an equal here are widened.
#pragma once

#include <cstdint>
#include <string_view>

#include "qkv/tensor.h"

namespace qkv::inline v0::io {

enum class Reading {
  kPlain,      // as it is
  kWiden,      // copied to a wider type that holds every value
  kUnreadable  // known, but nothing here can hold it
};

struct StoredType {
  const char* name;
  int bits;     // of one element
  DType dtype;  // as given out
  Reading reading;
};

// Null for a name that the format does not define.
const StoredType* find_stored_type(std::string_view name);

// The name under which a dtype is written.
const char* stored_name(DType dtype);

// A copy of `count` elements in type.dtype. DataError for a U64 above 2^63 - 1.
Tensor widen_stored(const StoredType& type, const std::byte* bytes, const Shape& shape);

}  // namespace qkv::inline v0::io
