#include "text/pre_tokenizer.h"

#include "base/check.h"
#include "text/json_fields.h"
#include "text/token_model.h"
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

// Calls change(word, out) for each word, which appends what the word becomes; empty ones are left
// out.
template <class Change>
void rebuild(AlignedText& text, std::vector<Span>& words, Change change) {
  AlignedText out(text, text.text().size() + words.size() * 3);
  std::size_t kept = 0;
  for (const Span& word : words) {
    const auto begin = static_cast<std::uint32_t>(out.text().size());
    change(word, out);
    const auto end = static_cast<std::uint32_t>(out.text().size());
    if (end > begin) words[kept++] = {begin, end};
  }
  words.resize(kept);
  text = std::move(out);
}

class ByteLevel : public PreTokenizer {
 public:
  ByteLevel(bool add_prefix_space, bool use_regex, bool plain_bytes)
      : add_prefix_space_(add_prefix_space), use_regex_(use_regex), plain_bytes_(plain_bytes) {}

  void split(AlignedText& text, std::vector<Span>& words) const override {
    if (add_prefix_space_) add_spaces(text, words);
    if (use_regex_) {
      std::vector<Span> finer;
      for (const Span& word : words) {
        const std::size_t first = finer.size();
        split_gpt2(text.text().substr(word.begin, word.end - word.begin), finer);
        for (std::size_t i = first; i < finer.size(); ++i) {
          finer[i].begin += word.begin;
          finer[i].end += word.begin;
        }
      }
      words.swap(finer);
    }
    if (plain_bytes_) return;
    rebuild(text, words, [&](const Span& word, AlignedText& out) {
      const AlignedText visible = visible_text(text.part(word));
      out.append_whole(visible);
    });
  }

 private:
  static void add_spaces(AlignedText& text, std::vector<Span>& words) {
    const bool whole =
        words.size() == 1 && words[0].begin == 0 && words[0].end == text.text().size();
    if (whole) {
      if (!text.text().starts_with(' ')) text.prepend(" ");
      words[0].end = static_cast<std::uint32_t>(text.text().size());
      return;
    }
    rebuild(text, words, [&](const Span& word, AlignedText& out) {
      if (text.text()[word.begin] != ' ') out.append(" ", text, word.begin);
      out.append(text, word);
    });
  }

  bool add_prefix_space_, use_regex_, plain_bytes_;
};

// SentencePiece's blanks: each becomes the mark, which begins a word.
class Metaspace : public PreTokenizer {
 public:
  enum class Prepend { kAlways, kFirst, kNever };
  Metaspace(std::string mark, Prepend prepend, bool split)
      : mark_(std::move(mark)), prepend_(prepend), split_(split) {}

  void split(AlignedText& text, std::vector<Span>& words) const override {
    std::vector<Span> finer;
    rebuild(text, words, [&](const Span& word, AlignedText& out) {
      const auto begin = static_cast<std::uint32_t>(out.text().size());
      const std::string_view bytes = text.text().substr(word.begin, word.end - word.begin);
      const bool marked = bytes.starts_with(mark_) || bytes.starts_with(' ');
      if (!marked && prepends(text, word)) out.append(mark_, text, word.begin);
      append_marked(text, word, out);
      if (split_) cut(out.text(), begin, finer);
    });
    if (split_) words.swap(finer);
  }

 private:
  bool prepends(const AlignedText& text, Span word) const {
    if (prepend_ != Prepend::kFirst) return prepend_ == Prepend::kAlways;
    return word.begin == 0
               ? text.base() == 0
               : text.tracks() && text.original({word.begin, word.begin + 1}).begin == 0;
  }
  void append_marked(const AlignedText& text, Span word, AlignedText& out) const {
    std::uint32_t from = word.begin;
    for (std::uint32_t i = word.begin; i < word.end; ++i) {
      if (text.text()[i] != ' ') continue;
      out.append(text, {from, i});
      out.append(mark_, text, i);
      from = i + 1;
    }
    out.append(text, {from, word.end});
  }
  // A new word before each mark.
  void cut(std::string_view text, std::uint32_t begin, std::vector<Span>& words) const {
    const auto size = static_cast<std::uint32_t>(text.size());
    while (begin < size) {
      const std::size_t mark = text.find(mark_, begin + 1);
      const std::uint32_t end =
          mark == std::string_view::npos ? size : static_cast<std::uint32_t>(mark);
      words.push_back({begin, end});
      begin = end;
    }
  }

  std::string mark_;
  Prepend prepend_;
  bool split_;
};

class PreTokenizerSequence : public PreTokenizer {
 public:
  explicit PreTokenizerSequence(std::vector<std::unique_ptr<const PreTokenizer>> parts)
      : parts_(std::move(parts)) {}
  void split(AlignedText& text, std::vector<Span>& words) const override {
    for (const auto& part : parts_) part->split(text, words);
  }

 private:
  std::vector<std::unique_ptr<const PreTokenizer>> parts_;
};

std::unique_ptr<const PreTokenizer> make_metaspace(const Json& json) {
  const std::string mark = string_or(json, "replacement", "\u2581");
  require<ModelError>(!mark.empty(), "tokenizer", "expected a replacement for blanks, got none");
  // Older files say only whether to add a blank.
  const std::string scheme = string_or(
      json, "prepend_scheme", flag_or(json, "add_prefix_space", true) ? "always" : "never");
  const bool known = scheme == "always" || scheme == "first" || scheme == "never";
  require<UnsupportedError>(known, "tokenizer",
                            "expected the prepend_scheme always, first or never, got '{}'", scheme);
  const auto prepend = scheme == "always"  ? Metaspace::Prepend::kAlways
                       : scheme == "first" ? Metaspace::Prepend::kFirst
                                           : Metaspace::Prepend::kNever;
  return std::make_unique<Metaspace>(mark, prepend, flag_or(json, "split", true));
}

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

bool ends_in_byte_level(const Json& json) {
  const Json* type = json.find("type");
  if (type == nullptr) return false;
  if (type->as_string() != "Sequence") return type->as_string() == "ByteLevel";
  const Json::Array& parts = json.at("pretokenizers").as_array();
  return !parts.empty() && ends_in_byte_level(parts.back());
}

std::unique_ptr<const PreTokenizer> make_pre_tokenizer(const Json& json, bool plain_bytes) {
  if (json.is_null()) return nullptr;
  const std::string& type = json.at("type").as_string();
  if (type == "ByteLevel") {
    return std::make_unique<ByteLevel>(flag_or(json, "add_prefix_space", true),
                                       flag_or(json, "use_regex", true), plain_bytes);
  }
  if (type == "Metaspace") return make_metaspace(json);
  if (type == "Sequence") {
    const Json::Array& list = json.at("pretokenizers").as_array();
    std::vector<std::unique_ptr<const PreTokenizer>> parts;
    for (std::size_t i = 0; i < list.size(); ++i) {
      auto part = make_pre_tokenizer(list[i], plain_bytes && i + 1 == list.size());
      if (part != nullptr) parts.push_back(std::move(part));
    }
    return std::make_unique<PreTokenizerSequence>(std::move(parts));
  }
  if (auto splitter = make_splitter(type, json)) return splitter;
  fail<UnsupportedError>(
      "tokenizer",
      "expected the pre_tokenizer BertPreTokenizer, ByteLevel, CharDelimiterSplit, Digits, "
      "FixedLength, Metaspace, Punctuation, Sequence, Split, UnicodeScripts, Whitespace or "
      "WhitespaceSplit, got '{}'",
      type);
}

}  // namespace qkv::inline v0::text
