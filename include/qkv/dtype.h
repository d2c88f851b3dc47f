// Element types. bf16 and fp16 are storage types: arithmetic on them is done in fp32.
#pragma once

#include <cstddef>
#include <cstdint>

#include "qkv/version.h"

namespace qkv::inline v0 {

enum class DType : std::uint8_t {
  kFloat64,
  kFloat32,
  kBFloat16,
  kFloat16,
  kInt64,
  kInt32,
  kInt16,
  kInt8,
  kUInt8,
  kBool
};

struct BFloat16 {
  std::uint16_t bits = 0;
};
struct Float16 {
  std::uint16_t bits = 0;
};

// Bytes of one element.
constexpr std::size_t dtype_size(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
    case DType::kInt64:
      return 8;
    case DType::kFloat32:
    case DType::kInt32:
      return 4;
    case DType::kBFloat16:
    case DType::kFloat16:
    case DType::kInt16:
      return 2;
    default:
      return 1;
  }
}

// "float32", "bfloat16", ... as in PyTorch.
QKV_API const char* dtype_name(DType dtype);

constexpr bool is_floating(DType dtype) { return dtype <= DType::kFloat16; }

// dtype_of<float>() and so on.
template <class T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<double>() {
  return DType::kFloat64;
}
template <>
constexpr DType dtype_of<float>() {
  return DType::kFloat32;
}
template <>
constexpr DType dtype_of<BFloat16>() {
  return DType::kBFloat16;
}
template <>
constexpr DType dtype_of<Float16>() {
  return DType::kFloat16;
}
template <>
constexpr DType dtype_of<std::int64_t>() {
  return DType::kInt64;
}
template <>
constexpr DType dtype_of<std::int32_t>() {
  return DType::kInt32;
}
template <>
constexpr DType dtype_of<std::int16_t>() {
  return DType::kInt16;
}
template <>
constexpr DType dtype_of<std::int8_t>() {
  return DType::kInt8;
}
template <>
constexpr DType dtype_of<std::uint8_t>() {
  return DType::kUInt8;
}
template <>
constexpr DType dtype_of<bool>() {
  return DType::kBool;
}

}  // namespace qkv::inline v0
