// Optional fields of tokenizer files: absent and null mean the default.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/json.h"

namespace qkv::inline v0::text {

inline bool flag_or(const Json& json, std::string_view key, bool absent) {
  const Json* value = json.find(key);
  return value == nullptr || value->is_null() ? absent : value->as_bool();
}

inline std::string string_or(const Json& json, std::string_view key, std::string_view absent) {
  const Json* value = json.find(key);
  return value == nullptr || value->is_null() ? std::string(absent) : value->as_string();
}

inline std::int64_t int_or(const Json& json, std::string_view key, std::int64_t absent) {
  const Json* value = json.find(key);
  return value == nullptr || value->is_null() ? absent : value->as_int();
}

}  // namespace qkv::inline v0::text
