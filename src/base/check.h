// Checks that end in a typed error: `require<ShapeError>(ok, "attention", "expected {}, got {}", a, b)`.
#pragma once

#include <fmt/core.h>

#include <utility>

#include "qkv/error.h"

namespace qkv::inline v0 {

template <class E, class... Args>
[[noreturn]] void fail(const char* where, fmt::format_string<Args...> format, Args&&... args) {
  throw E(where, fmt::format(format, std::forward<Args>(args)...));
}

// Arguments are evaluated even when the condition holds: keep it out of inner loops.
template <class E, class... Args>
void require(bool condition, const char* where, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) [[unlikely]]
    throw E(where, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace qkv::inline v0
