#include "text/versions.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <vector>

#include <pcre2.h>
#include <utf8proc.h>

namespace qkv::inline v0::text {

std::string pcre2_version() {
  const int length = pcre2_config(PCRE2_CONFIG_VERSION, nullptr);
  if (length <= 0) return "unknown";
  std::vector<char> text(static_cast<std::size_t>(length));
  pcre2_config(PCRE2_CONFIG_VERSION, text.data());
  return text.data();
}

std::string utf8proc_version() { return ::utf8proc_version(); }
std::string unicode_version() { return ::utf8proc_unicode_version(); }

}  // namespace qkv::inline v0::text
