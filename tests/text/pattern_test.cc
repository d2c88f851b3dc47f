// The hand-written word splitter against the pattern that defines it, run by PCRE2.
#define PCRE2_CODE_UNIT_WIDTH 8
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <pcre2.h>

#include "base/random.h"
#include "text/pre_tokenizer.h"
#include "text/unicode.h"

namespace {
using namespace qkv;

// \s is spelt out: the property White_Space, which PCRE2's own \s exceeds by U+180E.
constexpr const char* kPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^S\p{L}\p{N}]+|[S]+(?![^S])|[S]+)";
constexpr const char* kBlanks =
    R"(\x{9}-\x{D}\x{20}\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";

std::string gpt2_pattern() {
  std::string pattern;
  for (const char* c = kPattern; *c != '\0'; ++c)
    pattern += *c == 'S' ? std::string(kBlanks) : std::string(1, *c);
  return pattern;
}

class Pattern {
 public:
  explicit Pattern(std::string pattern = gpt2_pattern()) {
    int error = 0;
    PCRE2_SIZE offset = 0;
    code_ = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.c_str()), pattern.size(),
                          PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr);
    EXPECT_NE(code_, nullptr) << "error " << error << " at " << offset;
    match_ = pcre2_match_data_create_from_pattern(code_, nullptr);
  }
  ~Pattern() {
    pcre2_match_data_free(match_);
    pcre2_code_free(code_);
  }
  Pattern(const Pattern&) = delete;
  Pattern& operator=(const Pattern&) = delete;

  bool matches(const std::string& text) const {
    return pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0, 0, match_,
                       nullptr) > 0;
  }

  std::vector<text::Span> split(const std::string& text) const {
    std::vector<text::Span> words;
    for (std::size_t at = 0; at < text.size();) {
      const int found = pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                    at, 0, match_, nullptr);
      EXPECT_GT(found, 0);
      if (found <= 0) break;
      const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(match_);
      words.push_back({static_cast<std::uint32_t>(ends[0]), static_cast<std::uint32_t>(ends[1])});
      at = ends[1];
    }
    return words;
  }

 private:
  pcre2_code* code_ = nullptr;
  pcre2_match_data* match_ = nullptr;
};

TEST(SplitPattern, b44_equals_the_pattern_on_random_texts) {
  const Pattern pattern;
  const std::vector<char32_t> frequent = {
      ' ',  ' ',    ' ',  '\n',  '\t',   '\'', '\'', 's',    't',     'r',    'e',   'v',
      'm',  'l',    'd',  'S',   'L',    '1',  '2',  '.',    ',',     '_',    0xA0,  0x3000,
      0x85, 0x2028, 0xE9, 0x301, 0x4E2D, 0xBD, 0xB2, 0x2167, 0x1F600, 0x200D, 0x180E};
  Random random(44);
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    for (std::uint64_t n = random.below(24); n > 0; --n) {
      text::append_utf8(text, frequent[random.below(frequent.size())]);
    }
    std::vector<text::Span> words;
    text::split_gpt2(text, words);
    ASSERT_EQ(words, pattern.split(text)) << text;
  }
}

TEST(SplitPattern, b44_sorts_every_assigned_character_alike) {
  const Pattern pattern, unassigned(R"(\p{Cn})");  // the two libraries may know different versions
  int differing = 0;
  for (char32_t c = 1; c < 0x30000; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    std::string character;
    text::append_utf8(character, c);
    if (unassigned.matches(character)) continue;
    const std::string text = "a" + character + "1 " + character;
    std::vector<text::Span> words;
    text::split_gpt2(text, words);
    differing += words != pattern.split(text);
  }
  EXPECT_EQ(differing, 0);
}

}  // namespace
