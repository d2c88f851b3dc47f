// Code points: UTF-8, and the character classes that tokenizers are defined by.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace qkv::inline v0::text {

// The code point at `at`, which moves behind it. The text must be valid UTF-8.
inline char32_t next_char(std::string_view text, std::size_t& at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(at);
  if (lead < 0x80) return byte(at++);
  char32_t c = 0;
  const int more = lead < 0xE0 ? 1 : lead < 0xF0 ? 2 : 3;
  c = lead & (0x3F >> more);
  for (int i = 1; i <= more; ++i) c = (c << 6) | (byte(at + static_cast<std::size_t>(i)) & 0x3F);
  at += static_cast<std::size_t>(more) + 1;
  return c;
}

// Bytes of the code point that begins with `lead`.
inline std::size_t char_length(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

void append_utf8(std::string& out, char32_t c);
std::int64_t count_chars(std::string_view text);

// Text with each maximal invalid part replaced by one U+FFFD (Unicode 15, section 3.9).
std::string replace_invalid_utf8(std::string_view text);

bool is_letter(char32_t c);           // \p{L}
bool is_number(char32_t c);           // \p{N}
bool is_white_space(char32_t c);      // \s: the property White_Space
bool is_punctuation(char32_t c);      // \p{P}
bool is_nonspacing_mark(char32_t c);  // \p{Mn}
bool is_mark(char32_t c);             // \p{M}
// \w: alphabetic characters, marks, decimal digits, connectors, joiners (UTS 18, annex C).
bool is_word_char(char32_t c);
bool is_control_or_format(char32_t c);  // \p{Cc} \p{Cf} \p{Co}; unassigned ones are not

// The first place at or behind `at` that is no blank; the last place at or before it behind no
// blank.
std::size_t skip_white_space(std::string_view text, std::size_t at);
std::size_t skip_white_space_back(std::string_view text, std::size_t at);

// Full lower case of one code point, without context (only U+0130 has two). Appended.
void append_lower(std::u32string& out, char32_t c);
// Canonical decomposition (NFD) of one code point. Appended.
void append_decomposed(std::u32string& out, char32_t c);

}  // namespace qkv::inline v0::text
