// Checks that end in a typed error: `require<ShapeError>(ok, "attention", "expected {}, got {}", a,
// b)`.
#pragma once

#include <string_view>
#include <utility>

#include <fmt/core.h>

#include "qkv/error.h"

namespace qkv::inline v0 {

template <class E, class... Args>
[[noreturn]] void fail(const char* where, fmt::format_string<Args...> format, Args&&... args) {
  throw E(where, fmt::format(format, std::forward<Args>(args)...));
}

// Arguments are evaluated even when the condition holds: keep it out of inner loops.
template <class E, class... Args>
void require(bool condition, const char* where, fmt::format_string<Args...> format,
             Args&&... args) {
  if (!condition) [[unlikely]]
    throw E(where, fmt::format(format, std::forward<Args>(args)...));
}

// What an error says without its leading "[where] ": for a message that names a better place.
inline std::string_view error_reason(const Error& error) {
  return std::string_view(error.what()).substr(error.where().size() + 3);
}

}  // namespace qkv::inline v0
