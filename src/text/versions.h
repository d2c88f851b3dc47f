// Versions of the libraries that tokenizers use, as they are loaded now.
#pragma once

#include <string>

namespace qkv::inline v0::text {

std::string pcre2_version();     // "10.42 2022-12-11"
std::string utf8proc_version();  // "2.8.0"
std::string unicode_version();   // "15.0.0"

}  // namespace qkv::inline v0::text
