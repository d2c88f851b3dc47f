// Text inside XML and HTML.
#pragma once

#include <string>
#include <string_view>

namespace qkv::inline v0 {

// `text` with & < > " ' replaced by their entities. Bytes that XML forbids become spaces.
std::string escape_markup(std::string_view text);

}  // namespace qkv::inline v0
