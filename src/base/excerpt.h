// Text of strangers inside messages.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace qkv::inline v0 {

// Text of any length cut to so many bytes, between characters, with an ellipsis.
std::string excerpt(std::string_view text, std::size_t bytes = 80);

}  // namespace qkv::inline v0
