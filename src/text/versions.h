// Versions of the libraries that tokenizers use, as they are loaded now.
#pragma once

#include <string>

namespace qkv::inline v0::text {

std::string utf8proc_version();  // "2.8.0"
std::string unicode_version();   // "15.0.0"

}  // namespace qkv::inline v0::text
