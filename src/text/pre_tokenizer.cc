#include "text/pre_tokenizer.h"

#include "base/check.h"
#include "text/unicode.h"

namespace qkv::inline v0::text {
namespace {

enum class CharClass { kBlank, kLetter, kNumber, kOther };

CharClass class_of(char32_t c) {
  if (is_letter(c)) return CharClass::kLetter;
  if (is_white_space(c)) return CharClass::kBlank;
  if (is_number(c)) return CharClass::kNumber;
  return CharClass::kOther;
}

CharClass class_at(std::string_view text, std::size_t at) { return class_of(next_char(text, at)); }

std::size_t end_of_run(std::string_view text, std::size_t at, CharClass wanted) {
  while (at < text.size()) {
    std::size_t next = at;
    if (class_of(next_char(text, next)) != wanted) break;
    at = next;
  }
  return at;
}

// Length of the contraction at the beginning of `rest`, or 0.
std::size_t contraction(std::string_view rest) {
  if (rest.size() < 2 || rest[0] != '\'') return 0;
  const char a = rest[1];
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
  const std::string_view two = rest.substr(1, 2);
  return two == "re" || two == "ve" || two == "ll" ? 3 : 0;
}

// The end of a word of blanks that begins at `at`.
std::size_t end_of_blanks(std::string_view text, std::size_t at) {
  std::size_t last = at, end = at;
  while (end < text.size() && class_at(text, end) == CharClass::kBlank) {
    last = end;
    (void)next_char(text, end);
  }
  return end == text.size() || last == at ? end : last;
}

bool is_bert_punctuation(char32_t c) {
  if (c < 0x80)
    return (c >= 33 && c <= 47) || (c >= 58 && c <= 64) || (c >= 91 && c <= 96) ||
           (c >= 123 && c <= 126);
  return is_punctuation(c);
}

class ByteLevel : public PreTokenizer {
 public:
  ByteLevel(bool add_prefix_space, bool use_regex)
      : add_prefix_space_(add_prefix_space), use_regex_(use_regex) {}
  void split(AlignedText& text, std::vector<Span>& words) const override {
    if (add_prefix_space_ && !text.text().starts_with(' ')) text.prepend(' ');
    if (use_regex_) {
      split_gpt2(text.text(), words);
    } else if (!text.text().empty()) {
      words.push_back({0, static_cast<std::uint32_t>(text.text().size())});
    }
  }

 private:
  bool add_prefix_space_, use_regex_;
};

class BertPreTokenizer : public PreTokenizer {
 public:
  void split(AlignedText& text, std::vector<Span>& words) const override {
    split_bert(text.text(), words);
  }
};

}  // namespace

void split_gpt2(std::string_view text, std::vector<Span>& words) {
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t begin = at;
    at += contraction(text.substr(at));
    if (at == begin) {
      CharClass first = class_at(text, at);
      if (text[at] == ' ' && at + 1 < text.size()) {
        const CharClass second = class_at(text, at + 1);
        if (second != CharClass::kBlank) {
          first = second;
          ++at;
        }
      }
      at = first == CharClass::kBlank ? end_of_blanks(text, at) : end_of_run(text, at, first);
    }
    words.push_back({static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(at)});
  }
}

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

std::unique_ptr<const PreTokenizer> make_pre_tokenizer(const Json& json) {
  if (json.is_null()) return nullptr;
  const std::string& type = json.at("type").as_string();
  if (type == "ByteLevel") {
    const Json* use_regex = json.find("use_regex");  // absent in older files
    return std::make_unique<ByteLevel>(json.at("add_prefix_space").as_bool(),
                                       use_regex == nullptr || use_regex->as_bool());
  }
  if (type == "BertPreTokenizer") return std::make_unique<BertPreTokenizer>();
  fail<UnsupportedError>(
      "tokenizer", "expected the pre_tokenizer ByteLevel or BertPreTokenizer, got '{}'", type);
}

}  // namespace qkv::inline v0::text
