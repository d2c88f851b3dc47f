#include "text/pattern.h"

#include "base/check.h"
#include "text/unicode.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace qkv::inline v0::text {
namespace {

// The property White_Space, which PCRE2's own \s exceeds by U+180E.
constexpr std::string_view kBlanks =
    R"(\x{9}-\x{D}\x{20}\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";

// Alphabetic characters, marks, decimal digits, connectors, and Latin-1's other numbers, as in
// Oniguruma; PCRE2's own \w leaves marks out.
constexpr std::string_view kWord =
    R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{B2}\x{B3}\x{B9}\x{BC}-\x{BE})";

// \s, \w, \S and \W spelt out, apart from the last two inside a class, where there is no way to
// write them.
std::string with_classes(std::string_view expression) {
  std::string out;
  bool in_class = false;
  for (std::size_t i = 0; i < expression.size(); ++i) {
    const char c = expression[i];
    if (c == '\\' && i + 1 < expression.size()) {
      const char next = expression[++i];
      const bool blank = next == 's' || next == 'S', word = next == 'w' || next == 'W';
      const bool negated = next == 'S' || next == 'W';
      if ((!blank && !word) || (in_class && negated)) {
        out += c;
        out += next;
        continue;
      }
      if (!in_class) out += negated ? "[^" : "[";
      out += blank ? kBlanks : kWord;
      if (!in_class) out += ']';
      continue;
    }
    if (c == '[' && !in_class) {
      in_class = true;
      out += c;
      if (i + 1 < expression.size() && expression[i + 1] == '^') out += expression[++i];
      if (i + 1 < expression.size() && expression[i + 1] == ']') out += expression[++i];
      continue;
    }
    if (c == ']') in_class = false;
    out += c;
  }
  return out;
}

class Matcher {
 public:
  explicit Matcher(const pcre2_code* code)
      : code_(code), data_(pcre2_match_data_create_from_pattern(code, nullptr)) {
    require<DataError>(data_ != nullptr, "tokenizer", "expected memory for a match, got none");
  }
  ~Matcher() { pcre2_match_data_free(data_); }
  Matcher(const Matcher&) = delete;
  Matcher& operator=(const Matcher&) = delete;

  int run(std::string_view text, std::size_t at, std::uint32_t options) const {
    return pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at,
                       options | PCRE2_NO_UTF_CHECK, data_, nullptr);
  }
  const PCRE2_SIZE* ends() const { return pcre2_get_ovector_pointer(data_); }

 private:
  const pcre2_code* code_;
  pcre2_match_data* data_;
};

}  // namespace

struct Pattern::Code {
  explicit Code(pcre2_code* compiled) : code(compiled) {}
  ~Code() { pcre2_code_free(code); }
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  pcre2_code* code;
};

Pattern Pattern::literal(std::string text) {
  if (text.empty()) return regex("");  // between all characters
  Pattern pattern;
  pattern.literal_ = std::move(text);
  return pattern;
}

Pattern Pattern::regex(std::string_view expression) {
  const std::string source = with_classes(expression);
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code = pcre2_compile(
      reinterpret_cast<PCRE2_SPTR>(source.data()), source.size(),
      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr);
  if (code == nullptr) {
    std::string reason(256, '\0');
    const int size =
        pcre2_get_error_message(error, reinterpret_cast<PCRE2_UCHAR*>(reason.data()), 256);
    reason.resize(size > 0 ? static_cast<std::size_t>(size) : 0);
    fail<ModelError>("tokenizer", "expected a regular expression, got '{}': {} at {}", expression,
                     reason, offset);
  }
  // Where there is no JIT for this machine the interpreter serves.
  (void)pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
  Pattern pattern;
  pattern.code_ = std::make_shared<const Code>(code);
  return pattern;
}

Pattern Pattern::parse(const Json& json) {
  if (json.is_string()) return literal(json.as_string());
  if (const Json* text = json.find("String")) return literal(text->as_string());
  if (const Json* expression = json.find("Regex")) return regex(expression->as_string());
  fail<UnsupportedError>("tokenizer", "expected a pattern of kind String or Regex, got {}",
                         json.dump());
}

void Pattern::find_all(std::string_view text, std::vector<Span>& matches) const {
  const auto add = [&](std::size_t begin, std::size_t end) {
    matches.push_back({static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(end)});
  };
  if (code_ == nullptr) {
    for (std::size_t at = text.find(literal_); at != std::string_view::npos;
         at = text.find(literal_, at + literal_.size()))
      add(at, at + literal_.size());
    return;
  }
  if (text.empty()) return;
  const Matcher match(code_->code);
  std::size_t last = std::string_view::npos;  // end of the match before
  for (std::size_t at = 0; at <= text.size();) {
    int found = match.run(text, at, 0);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) found = match.run(text, at, PCRE2_NO_JIT);
    if (found == PCRE2_ERROR_NOMATCH) return;
    require<DataError>(found > 0, "tokenizer",
                       "expected a text that the tokenizer's pattern can be matched on, got PCRE2 "
                       "error {} at byte {}",
                       found, at);
    const PCRE2_SIZE* ends = match.ends();
    if (ends[0] >= ends[1] && ends[1] == last) {
      at += at < text.size() ? char_length(text[at]) : 1;
      continue;
    }
    // \K can put the beginning behind the end; such a match is empty.
    add(std::min(ends[0], ends[1]), ends[1]);
    at = last = std::max(ends[1], at);
  }
}

}  // namespace qkv::inline v0::text
