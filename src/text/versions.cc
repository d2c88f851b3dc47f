#include "text/versions.h"

#include <utf8proc.h>

namespace qkv::inline v0::text {

std::string utf8proc_version() { return ::utf8proc_version(); }
std::string unicode_version() { return ::utf8proc_unicode_version(); }

}  // namespace qkv::inline v0::text
