#include "io/stored_types.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "base/convert.h"

namespace qkv::inline v0::io {
namespace {

constexpr StoredType kTypes[] = {
    {"F64", 64, DType::kFloat64, Reading::kPlain},
    {"F32", 32, DType::kFloat32, Reading::kPlain},
    {"BF16", 16, DType::kBFloat16, Reading::kPlain},
    {"F16", 16, DType::kFloat16, Reading::kPlain},
    {"I64", 64, DType::kInt64, Reading::kPlain},
    {"I32", 32, DType::kInt32, Reading::kPlain},
    {"I16", 16, DType::kInt16, Reading::kPlain},
    {"I8", 8, DType::kInt8, Reading::kPlain},
    {"U8", 8, DType::kUInt8, Reading::kPlain},
    {"BOOL", 8, DType::kBool, Reading::kPlain},
    {"U64", 64, DType::kInt64, Reading::kWiden},
    {"U32", 32, DType::kInt64, Reading::kWiden},
    {"U16", 16, DType::kInt32, Reading::kWiden},
    {"F8_E4M3", 8, DType::kBFloat16, Reading::kWiden},
    {"F8_E5M2", 8, DType::kBFloat16, Reading::kWiden},
    {"F8_E8M0", 8, DType::kBFloat16, Reading::kWiden},
    {"F8_E4M3FNUZ", 8, DType::kBFloat16, Reading::kUnreadable},
    {"F8_E5M2FNUZ", 8, DType::kBFloat16, Reading::kUnreadable},
    {"F6_E2M3", 6, DType::kBFloat16, Reading::kUnreadable},
    {"F6_E3M2", 6, DType::kBFloat16, Reading::kUnreadable},
    {"F4", 4, DType::kBFloat16, Reading::kUnreadable},
    {"C64", 64, DType::kFloat32, Reading::kUnreadable},
};

template <class T>
T read_at(const std::byte* bytes, std::int64_t i) {
  T value;  // the bytes need not be aligned
  std::memcpy(&value, bytes + static_cast<std::size_t>(i) * sizeof(T), sizeof(T));
  return value;
}

// 1 sign, 4 exponent and 3 fraction bits, bias 7; all ones is NaN, there is no infinity.
float from_e4m3(std::uint8_t byte) {
  const int exponent = (byte >> 3) & 15, fraction = byte & 7;
  const float sign = (byte & 0x80) != 0 ? -1.0F : 1.0F;
  if (exponent == 15 && fraction == 7) return std::numeric_limits<float>::quiet_NaN();
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(fraction), -9);
  return sign * std::ldexp(static_cast<float>(8 + fraction), exponent - 10);
}

// The upper byte of an fp16.
float from_e5m2(std::uint8_t byte) {
  return to_float(Float16{static_cast<std::uint16_t>(byte << 8)});
}

// A power of two without sign: a scale.
float from_e8m0(std::uint8_t byte) {
  if (byte == 0xFF) return std::numeric_limits<float>::quiet_NaN();
  return std::ldexp(1.0F, byte - 127);
}

Tensor widen_small_floats(float (*convert)(std::uint8_t), const std::byte* bytes,
                          const Shape& shape) {
  Tensor wide = Tensor::empty(shape, DType::kBFloat16);
  for (std::int64_t i = 0; i < wide.numel(); ++i)
    wide.data<BFloat16>()[i] = to_bfloat16(convert(std::to_integer<std::uint8_t>(bytes[i])));
  return wide;
}

template <class From, class To>
Tensor widen_unsigned(const std::byte* bytes, const Shape& shape) {
  Tensor wide = Tensor::empty(shape, dtype_of<To>());
  for (std::int64_t i = 0; i < wide.numel(); ++i) {
    const From value = read_at<From>(bytes, i);
    require<DataError>(value <= static_cast<From>(std::numeric_limits<To>::max()), "safetensors",
                       "expected U64 values below 2^63, got {}", value);
    wide.data<To>()[i] = static_cast<To>(value);
  }
  return wide;
}

}  // namespace

const StoredType* find_stored_type(std::string_view name) {
  for (const StoredType& type : kTypes)
    if (name == type.name) return &type;
  return nullptr;
}

const char* stored_name(DType dtype) {
  for (const StoredType& type : kTypes)
    if (dtype == type.dtype && type.reading == Reading::kPlain) return type.name;
  fail<InternalError>("safetensors", "expected a dtype with a name, got number {}",
                      static_cast<int>(dtype));
}

Tensor widen_stored(const StoredType& type, const std::byte* bytes, const Shape& shape) {
  const std::string_view name = type.name;
  if (name == "U64") return widen_unsigned<std::uint64_t, std::int64_t>(bytes, shape);
  if (name == "U32") return widen_unsigned<std::uint32_t, std::int64_t>(bytes, shape);
  if (name == "U16") return widen_unsigned<std::uint16_t, std::int32_t>(bytes, shape);
  if (name == "F8_E4M3") return widen_small_floats(from_e4m3, bytes, shape);
  if (name == "F8_E5M2") return widen_small_floats(from_e5m2, bytes, shape);
  if (name == "F8_E8M0") return widen_small_floats(from_e8m0, bytes, shape);
  fail<InternalError>("safetensors", "expected a type that can be widened, got {}", type.name);
}

}  // namespace qkv::inline v0::io
