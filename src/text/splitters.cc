// The pre-tokenizers that cut each word on its own, by characters or by a pattern. Their words are
// those of Hugging Face's tokenizers.
#include <algorithm>
#include <string>

#include "base/check.h"
#include "text/bert_classes.h"
#include "text/json_fields.h"
#include "text/pattern.h"
#include "text/pre_tokenizer.h"
#include "text/unicode.h"

namespace qkv::inline v0::text {
namespace {

// What becomes of the matches.
enum class Behaviour { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

Behaviour parse_behaviour(const std::string& name) {
  if (name == "Removed") return Behaviour::kRemoved;
  if (name == "Isolated") return Behaviour::kIsolated;
  if (name == "MergedWithPrevious") return Behaviour::kMergedWithPrevious;
  if (name == "MergedWithNext") return Behaviour::kMergedWithNext;
  if (name == "Contiguous") return Behaviour::kContiguous;
  fail<UnsupportedError>("tokenizer",
                         "expected the behaviour Removed, Isolated, MergedWithPrevious, "
                         "MergedWithNext or Contiguous, got '{}'",
                         name);
}

// Takes matches, empty ones too, and what lies between, in order, and makes words of them.
class WordMaker {
 public:
  WordMaker(Behaviour behaviour, std::vector<Span>& words) : behaviour_(behaviour), words_(words) {}

  void add(Span part, bool is_match) {
    switch (behaviour_) {
      case Behaviour::kRemoved:
        if (!is_match) words_.push_back(part);
        break;
      case Behaviour::kIsolated:
        words_.push_back(part);
        break;
      case Behaviour::kMergedWithPrevious:
        join(part, any_ && is_match && !was_match_);
        break;
      case Behaviour::kMergedWithNext:  // only the last of several matches joins what follows
        join(part, any_ && !is_match && was_match_);
        break;
      case Behaviour::kContiguous:
        join(part, any_ && is_match == was_match_);
        break;
    }
    any_ = true;
    was_match_ = is_match;
  }

 private:
  void join(Span part, bool to_last) {
    if (to_last) {
      words_.back().end = part.end;
    } else {
      words_.push_back(part);
    }
  }

  Behaviour behaviour_;
  std::vector<Span>& words_;
  bool any_ = false, was_match_ = false;
};

// Each character that `is_match` takes is a match.
template <class IsMatch>
void cut_chars(std::string_view text, WordMaker maker, IsMatch is_match) {
  std::uint32_t open = 0;
  for (std::size_t at = 0; at < text.size();) {
    const auto begin = static_cast<std::uint32_t>(at);
    if (!is_match(next_char(text, at))) continue;
    const auto end = static_cast<std::uint32_t>(at);
    if (begin > open) maker.add({open, begin}, false);
    maker.add({begin, end}, true);
    open = end;
  }
  const auto size = static_cast<std::uint32_t>(text.size());
  if (size > open) maker.add({open, size}, false);
}

class BertPreTokenizer : public WordSplitter {
 public:
  void cut(std::string_view text, std::vector<Span>& words) const override {
    split_bert(text, words);
  }
};

template <class IsMatch>
class CharSplit : public WordSplitter {
 public:
  CharSplit(Behaviour behaviour, IsMatch is_match)
      : behaviour_(behaviour), is_match_(std::move(is_match)) {}
  void cut(std::string_view text, std::vector<Span>& words) const override {
    cut_chars(text, WordMaker(behaviour_, words), is_match_);
  }

 private:
  Behaviour behaviour_;
  IsMatch is_match_;
};

template <class IsMatch>
std::unique_ptr<const PreTokenizer> char_split(Behaviour behaviour, IsMatch is_match) {
  return std::make_unique<CharSplit<IsMatch>>(behaviour, std::move(is_match));
}

// \w+|[^\w\s]+
class Whitespace : public WordSplitter {
 public:
  void cut(std::string_view text, std::vector<Span>& words) const override {
    enum class Kind { kBlank, kWord, kOther };
    const auto kind_of = [](char32_t c) {
      if (is_word_char(c)) return Kind::kWord;
      return is_white_space(c) ? Kind::kBlank : Kind::kOther;
    };
    Kind last = Kind::kBlank;
    for (std::size_t at = 0; at < text.size();) {
      const auto begin = static_cast<std::uint32_t>(at);
      const Kind kind = kind_of(next_char(text, at));
      const auto end = static_cast<std::uint32_t>(at);
      if (kind != Kind::kBlank) {
        if (kind == last) {
          words.back().end = end;
        } else {
          words.push_back({begin, end});
        }
      }
      last = kind;
    }
  }
};

class PatternSplit : public WordSplitter {
 public:
  PatternSplit(Pattern pattern, Behaviour behaviour, bool invert)
      : pattern_(std::move(pattern)), behaviour_(behaviour), invert_(invert) {}
  void cut(std::string_view text, std::vector<Span>& words) const override {
    std::vector<Span> matches;
    matches.reserve(text.size() / 4 + 4);
    pattern_.find_all(text, matches);
    const std::size_t first = words.size();
    WordMaker maker(behaviour_, words);
    std::uint32_t open = 0;
    bool any_empty = false;
    for (const Span& match : matches) {
      if (match.begin > open) maker.add({open, match.begin}, invert_);
      maker.add(match, !invert_);
      any_empty = any_empty || match.begin == match.end;
      open = match.end;
    }
    const auto size = static_cast<std::uint32_t>(text.size());
    if (size > open) maker.add({open, size}, invert_);
    if (!any_empty) return;
    const auto is_empty = [](const Span& word) { return word.begin == word.end; };
    words.erase(
        std::remove_if(words.begin() + static_cast<std::ptrdiff_t>(first), words.end(), is_empty),
        words.end());
  }

 private:
  Pattern pattern_;
  Behaviour behaviour_;
  bool invert_;
};

class FixedLength : public WordSplitter {
 public:
  explicit FixedLength(std::int64_t length) : length_(length) {}
  void cut(std::string_view text, std::vector<Span>& words) const override {
    std::uint32_t open = 0;
    std::int64_t count = 0;
    for (std::size_t at = 0; at < text.size();) {
      at += char_length(text[at]);
      if (++count < length_ && at < text.size()) continue;
      words.push_back({open, static_cast<std::uint32_t>(at)});
      open = static_cast<std::uint32_t>(at);
      count = 0;
    }
  }

 private:
  std::int64_t length_;
};

char32_t one_char(const std::string& text) {
  require<ModelError>(!text.empty() && char_length(text[0]) == text.size(), "tokenizer",
                      "expected one character as the delimiter, got '{}'", text);
  std::size_t at = 0;
  return next_char(text, at);
}

}  // namespace

void split_bert(std::string_view text, std::vector<Span>& words) {
  std::size_t word = 0, at = 0;
  const auto close = [&](std::size_t end) {
    if (end > word)
      words.push_back({static_cast<std::uint32_t>(word), static_cast<std::uint32_t>(end)});
  };
  while (at < text.size()) {
    const std::size_t begin = at;
    const char32_t c = next_char(text, at);
    const bool blank = is_white_space(c);
    if (!blank && !is_bert_punctuation(c)) continue;
    close(begin);
    if (!blank)
      words.push_back({static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(at)});
    word = at;
  }
  close(text.size());
}

std::unique_ptr<const PreTokenizer> make_splitter(const std::string& type, const Json& json) {
  if (type == "BertPreTokenizer") return std::make_unique<BertPreTokenizer>();
  if (type == "Whitespace") return std::make_unique<Whitespace>();
  if (type == "WhitespaceSplit") return char_split(Behaviour::kRemoved, is_white_space);
  if (type == "UnicodeScripts") return make_unicode_scripts();
  if (type == "Digits") {
    const bool single = flag_or(json, "individual_digits", false);
    return char_split(single ? Behaviour::kIsolated : Behaviour::kContiguous, is_number);
  }
  if (type == "Punctuation") {
    return char_split(parse_behaviour(string_or(json, "behavior", "Isolated")),
                      is_bert_punctuation);
  }
  if (type == "CharDelimiterSplit") {
    const char32_t delimiter = one_char(json.at("delimiter").as_string());
    return char_split(Behaviour::kRemoved, [delimiter](char32_t c) { return c == delimiter; });
  }
  if (type == "Split") {
    return std::make_unique<PatternSplit>(Pattern::parse(json.at("pattern")),
                                          parse_behaviour(json.at("behavior").as_string()),
                                          flag_or(json, "invert", false));
  }
  if (type == "FixedLength") {
    const std::int64_t length = int_or(json, "length", 5);
    require<ModelError>(length > 0, "tokenizer", "expected a length above 0, got {}", length);
    return std::make_unique<FixedLength>(length);
  }
  return nullptr;
}

}  // namespace qkv::inline v0::text
