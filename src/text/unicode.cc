#include "text/unicode.h"

#include <algorithm>
#include <array>

#include <utf8proc.h>

#include "base/json.h"

namespace qkv::inline v0::text {
namespace {

utf8proc_category_t category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

// Bytes of the longest prefix that begins a valid sequence but breaks off: what one U+FFFD stands
// for. At least 1.
std::size_t invalid_part(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  const std::size_t whole = lead >= 0xC2 && lead <= 0xF4 ? char_length(text[0]) : 1;
  for (std::size_t n = std::min(whole - 1, text.size()); n > 1; --n) {
    // A cut sequence is good so far if some continuation completes it.
    for (const char filler : {'\x80', '\xBF'}) {
      std::string completed(text.substr(0, n));
      completed.append(whole - n, filler);
      if (find_invalid_utf8(completed) == std::string_view::npos) return n;
    }
  }
  return 1;
}

}  // namespace

void append_utf8(std::string& out, char32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xC0 | (c >> 6));
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xE0 | (c >> 12));
    out += static_cast<char>(0x80 | ((c >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | (c >> 18));
    out += static_cast<char>(0x80 | ((c >> 12) & 0x3F));
    out += static_cast<char>(0x80 | ((c >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  }
}

std::int64_t count_chars(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string out;
  for (;;) {
    const std::size_t bad = std::min(find_invalid_utf8(text), text.size());
    out += text.substr(0, bad);
    text.remove_prefix(bad);
    if (text.empty()) return out;
    out += "\xEF\xBF\xBD";
    text.remove_prefix(invalid_part(text));
  }
}

bool is_letter(char32_t c) {
  if (c < 0x80) return (c | 0x20) - U'a' < 26;
  const utf8proc_category_t k = category(c);
  return k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
}

bool is_number(char32_t c) {
  if (c < 0x80) return c - U'0' < 10;
  const utf8proc_category_t k = category(c);
  return k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO;
}

bool is_white_space(char32_t c) {
  if (c < 0x80) return c == U' ' || c - U'\t' < 5;
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_punctuation(char32_t c) {
  const utf8proc_category_t k = category(c);
  return k >= UTF8PROC_CATEGORY_PC && k <= UTF8PROC_CATEGORY_PO;
}

bool is_nonspacing_mark(char32_t c) { return category(c) == UTF8PROC_CATEGORY_MN; }

bool is_mark(char32_t c) {
  if (c < 0x300) return false;
  const utf8proc_category_t k = category(c);
  return k >= UTF8PROC_CATEGORY_MN && k <= UTF8PROC_CATEGORY_ME;
}

bool is_word_char(char32_t c) {
  if (c < 0x80) return is_letter(c) || is_number(c) || c == U'_';
  const utf8proc_category_t k = category(c);
  if ((k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_NL) || k == UTF8PROC_CATEGORY_PC)
    return true;
  // Joiners, and the letters in circles and squares that are alphabetic though symbols.
  return c == 0x200C || c == 0x200D || (c >= 0x24B6 && c <= 0x24E9) ||
         (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
         (c >= 0x1F170 && c <= 0x1F189);
}

std::size_t skip_white_space(std::string_view text, std::size_t at) {
  while (at < text.size()) {
    std::size_t next = at;
    if (!is_white_space(next_char(text, next))) break;
    at = next;
  }
  return at;
}

std::size_t skip_white_space_back(std::string_view text, std::size_t at) {
  while (at > 0) {
    std::size_t begin = at - 1;
    while ((static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
    std::size_t next = begin;
    if (!is_white_space(next_char(text, next))) break;
    at = begin;
  }
  return at;
}

bool is_control_or_format(char32_t c) {
  const utf8proc_category_t k = category(c);
  return k == UTF8PROC_CATEGORY_CC || k == UTF8PROC_CATEGORY_CF || k == UTF8PROC_CATEGORY_CO;
}

void append_lower(std::u32string& out, char32_t c) {
  if (c == 0x130) {
    out += U"i\u0307";
  } else {
    out += static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c)));
  }
}

void append_decomposed(std::u32string& out, char32_t c) {
  std::array<utf8proc_int32_t, 32> buffer;
  int boundary = 0;
  const utf8proc_ssize_t n =
      utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), buffer.data(), buffer.size(),
                              UTF8PROC_DECOMPOSE, &boundary);
  if (n <= 0) {
    out += c;
    return;
  }
  for (utf8proc_ssize_t i = 0; i < n; ++i)
    out += static_cast<char32_t>(buffer[static_cast<std::size_t>(i)]);
}

}  // namespace qkv::inline v0::text
