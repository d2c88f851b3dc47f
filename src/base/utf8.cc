#include <cstdint>
#include <cstring>

#include "base/excerpt.h"
#include "base/json.h"

namespace qkv::inline v0 {
namespace {

bool is_continuation(unsigned char c) { return (c & 0xC0) == 0x80; }

// Length of the valid sequence at `p` with `left` bytes to go; 0 if there is none (Unicode 15,
// table 3-7).
std::size_t sequence_length(const unsigned char* p, std::size_t left) {
  const unsigned char lead = p[0];
  if (lead < 0x80) return 1;
  if (lead < 0xC2) return 0;  // continuation bytes and overlong forms of ASCII
  if (lead < 0xE0) return left >= 2 && is_continuation(p[1]) ? 2 : 0;
  if (lead < 0xF0) {
    if (left < 3 || !is_continuation(p[1]) || !is_continuation(p[2])) return 0;
    if (lead == 0xE0 && p[1] < 0xA0) return 0;   // overlong
    if (lead == 0xED && p[1] >= 0xA0) return 0;  // surrogates
    return 3;
  }
  if (lead > 0xF4 || left < 4 || !is_continuation(p[1]) || !is_continuation(p[2]) ||
      !is_continuation(p[3]))
    return 0;
  if (lead == 0xF0 && p[1] < 0x90) return 0;   // overlong
  if (lead == 0xF4 && p[1] >= 0x90) return 0;  // beyond U+10FFFF
  return 4;
}

}  // namespace

std::size_t find_invalid_utf8(std::string_view text) {
  const auto* p = reinterpret_cast<const unsigned char*>(text.data());
  const std::size_t n = text.size();
  std::size_t i = 0;
  while (i < n) {
    if (n - i >= 8) {  // eight ASCII bytes at a time
      std::uint64_t word = 0;
      std::memcpy(&word, p + i, 8);
      if ((word & 0x8080808080808080ull) == 0) {
        i += 8;
        continue;
      }
    }
    const std::size_t length = sequence_length(p + i, n - i);
    if (length == 0) return i;
    i += length;
  }
  return std::string_view::npos;
}

std::string excerpt(std::string_view text, std::size_t bytes) {
  if (text.size() <= bytes) return std::string(text);
  std::size_t end = bytes;
  while (end > 0 && is_continuation(static_cast<unsigned char>(text[end]))) --end;
  return std::string(text.substr(0, end)) + "…";
}

}  // namespace qkv::inline v0
