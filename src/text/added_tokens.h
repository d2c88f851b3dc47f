// Tokens that are looked for in the text before anything else, such as [MASK].
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "text/aligned_text.h"

namespace qkv::inline v0::text {

struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  bool single_word = false;  // only where no word character touches it
  bool lstrip = false;       // takes the blanks before it
  bool rstrip = false;       // takes the blanks behind it
  bool normalized = false;   // looked for in the normalised text
  bool special =
      false;  // left out by decode, and ordinary text where special tokens are not parsed
};

// The "added_tokens" of a tokenizer.json, and back.
std::vector<AddedToken> parse_added_tokens(const Json& json);
Json added_token_json(const AddedToken& token);

// A part of a text: an added token, or ordinary text between two (id -1).
struct TextPart {
  std::int32_t id = -1;
  Span span;
};

// Finds added tokens: at each place the longest one wins.
class AddedTokenFinder {
 public:
  AddedTokenFinder() { children_.emplace_back(); }
  // `pattern` is the text to look for: the content, normalised if the token says so.
  void insert(const AddedToken& token, std::string_view pattern);
  bool empty() const { return tokens_.empty(); }
  // Cuts the text; without `parse_special`, special tokens are ordinary text.
  void split(std::string_view text, bool parse_special, std::vector<TextPart>& parts) const;

 private:
  struct Match {
    std::size_t token = 0, size = 0;  // size 0: none
  };
  Match longest_at(std::string_view text, std::size_t at, bool parse_special) const;

  struct Node {
    std::vector<std::pair<char, std::uint32_t>> next;
    std::int32_t token = -1;  // index into tokens_
  };
  std::vector<AddedToken> tokens_;
  std::vector<Node> children_;
  std::array<bool, 256> begins_{};  // bytes that a token begins with
};

}  // namespace qkv::inline v0::text
