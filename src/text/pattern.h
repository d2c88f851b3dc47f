// What splitters and replacements look for: a literal text or a regular expression.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "text/aligned_text.h"

namespace qkv::inline v0::text {

// Immutable; finding is thread-safe. Regular expressions are those of PCRE2 with Unicode classes;
// \s is the property White_Space, \w has marks, ^ and $ match at every line, as in the engine that
// tokenizer files are written for.
class Pattern {
 public:
  static Pattern literal(std::string text);
  // ModelError with the position for an expression that is not valid.
  static Pattern regex(std::string_view expression);
  // {"String": "..."} or {"Regex": "..."} of a tokenizer.json; a plain string is a literal.
  static Pattern parse(const Json& json);

  // Appends all matches, left to right, without overlap; an empty match right behind another one is
  // left out. `text` must be valid UTF-8. DataError if an expression needs more steps or memory
  // than PCRE2 allows for one match.
  void find_all(std::string_view text, std::vector<Span>& matches) const;

 private:
  struct Code;
  std::string literal_;
  std::shared_ptr<const Code> code_;  // null: literal
};

}  // namespace qkv::inline v0::text
