// "Did you mean": the known name closest to a misspelt one.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace qkv::inline v0 {

// The name with the smallest edit distance (insert, delete, replace, swap of neighbours), the first
// of equals; empty if none is closer than half the length of the word.
std::string nearest_name(std::string_view word, std::span<const std::string> names);

}  // namespace qkv::inline v0
