#include "text/added_tokens.h"

#include <algorithm>

#include "base/check.h"
#include "text/unicode.h"

namespace qkv::inline v0::text {
namespace {

char32_t char_before(std::string_view text, std::size_t at) {
  --at;
  while ((static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
  return next_char(text, at);
}

char32_t char_at(std::string_view text, std::size_t at) { return next_char(text, at); }

bool stands_alone(std::string_view text, std::size_t begin, std::size_t end) {
  return (begin == 0 || !is_word_char(char_before(text, begin))) &&
         (end == text.size() || !is_word_char(char_at(text, end)));
}

}  // namespace

std::vector<AddedToken> parse_added_tokens(const Json& json) {
  std::vector<AddedToken> tokens;
  for (const Json& entry : json.as_array()) {
    AddedToken token;
    const std::int64_t id = entry.at("id").as_int();
    require<ModelError>(id >= 0 && id < (std::int64_t{1} << 31), "tokenizer",
                        "expected ids of added tokens from 0, got {}", id);
    token.id = static_cast<std::int32_t>(id);
    token.content = entry.at("content").as_string();
    require<ModelError>(!token.content.empty(), "tokenizer",
                        "expected added tokens with a text, got an empty one (id {})", id);
    token.single_word = entry.at("single_word").as_bool();
    token.lstrip = entry.at("lstrip").as_bool();
    token.rstrip = entry.at("rstrip").as_bool();
    token.normalized = entry.at("normalized").as_bool();
    token.special = entry.at("special").as_bool();
    tokens.push_back(std::move(token));
  }
  return tokens;
}

Json added_token_json(const AddedToken& token) {
  return Json(Json::Object{{"id", std::int64_t{token.id}},
                           {"content", token.content},
                           {"single_word", token.single_word},
                           {"lstrip", token.lstrip},
                           {"rstrip", token.rstrip},
                           {"normalized", token.normalized},
                           {"special", token.special}});
}

void AddedTokenFinder::insert(const AddedToken& token, std::string_view pattern) {
  if (pattern.empty()) return;  // its normalised form is empty: never found
  std::uint32_t node = 0;
  for (const char c : pattern) {
    auto& next = children_[node].next;
    const auto found =
        std::find_if(next.begin(), next.end(), [c](const auto& edge) { return edge.first == c; });
    if (found != next.end()) {
      node = found->second;
      continue;
    }
    const auto made = static_cast<std::uint32_t>(children_.size());
    next.emplace_back(c, made);
    children_.emplace_back();
    node = made;
  }
  if (children_[node].token >= 0) return;  // two tokens of one normalised form: the first
  children_[node].token = static_cast<std::int32_t>(tokens_.size());
  tokens_.push_back(token);
  begins_[static_cast<unsigned char>(pattern[0])] = true;
}

AddedTokenFinder::Match AddedTokenFinder::longest_at(std::string_view text, std::size_t at,
                                                     bool parse_special) const {
  Match match;
  std::uint32_t node = 0;
  for (std::size_t i = at; i < text.size(); ++i) {
    const auto& next = children_[node].next;
    const auto found = std::find_if(next.begin(), next.end(),
                                    [&](const auto& edge) { return edge.first == text[i]; });
    if (found == next.end()) break;
    node = found->second;
    const std::int32_t token = children_[node].token;
    if (token >= 0 && (parse_special || !tokens_[static_cast<std::size_t>(token)].special)) {
      match = {static_cast<std::size_t>(token), i + 1 - at};
    }
  }
  return match;
}

void AddedTokenFinder::split(std::string_view text, bool parse_special,
                             std::vector<TextPart>& parts) const {
  std::size_t open = 0;  // where the ordinary text before the next token begins
  const auto add = [&](std::int32_t id, std::size_t begin, std::size_t end) {
    if (end > begin)
      parts.push_back({id, {static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(end)}});
  };
  for (std::size_t at = 0; at < text.size();) {
    if (!begins_[static_cast<unsigned char>(text[at])]) {
      ++at;
      continue;
    }
    const Match match = longest_at(text, at, parse_special);
    if (match.size == 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[match.token];
    std::size_t begin = at, end = at + match.size;
    at = end;
    if (token.single_word && !stands_alone(text, begin, end)) continue;
    if (token.lstrip) begin = std::max(open, skip_white_space_back(text, begin));
    if (token.rstrip) end = skip_white_space(text, end);
    begin = std::max(begin, open);
    add(-1, open, begin);
    add(token.id, begin, end);
    open = std::max(open, end);
    at = std::max(at, open);
  }
  add(-1, open, text.size());
}

}  // namespace qkv::inline v0::text
