// The normalisers that change characters, blanks or matches of a pattern. Their results, offsets
// included, are those of Hugging Face's tokenizers.
#include <utility>
#include <vector>

#include "base/check.h"
#include "text/chars_map.h"
#include "text/json_fields.h"
#include "text/normalizer.h"
#include "text/pattern.h"
#include "text/token_model.h"
#include "text/unicode.h"
#include "text/unicode_forms.h"

namespace qkv::inline v0::text {
namespace {

// Calls change(character, origin, out) for every character.
template <class Change>
AlignedText map_chars(const AlignedText& text, Change change) {
  AlignedText out(text, text.text().size());
  const std::string_view bytes = text.text();
  for (std::size_t at = 0; at < bytes.size();) {
    const auto begin = static_cast<std::uint32_t>(at);
    const char32_t c = next_char(bytes, at);
    const Span span{begin, static_cast<std::uint32_t>(at)};
    change(c, text.tracks() ? text.original(span) : Span{}, out);
  }
  return out;
}

class Lowercase : public Normalizer {
 public:
  AlignedText apply(const AlignedText& text) const override {
    std::u32string buffer;
    return map_chars(text, [&](char32_t c, Span origin, AlignedText& out) {
      if (c < 0x80) {
        out.append_ascii(static_cast<char>(c - U'A' < 26 ? c + 32 : c), origin);
        return;
      }
      buffer.clear();
      append_lower(buffer, c);
      for (const char32_t part : buffer) out.append(part, origin);
    });
  }
};

class Form : public Normalizer {
 public:
  explicit Form(NormalForm form) : form_(form) {}
  AlignedText apply(const AlignedText& text) const override { return to_normal_form(text, form_); }

 private:
  NormalForm form_;
};

class StripAccents : public Normalizer {
 public:
  AlignedText apply(const AlignedText& text) const override {
    return map_chars(text, [](char32_t c, Span origin, AlignedText& out) {
      if (!is_mark(c)) out.append(c, origin);
    });
  }
};

// Control characters leave, other invisible ones and U+2581 become blanks (as in SentencePiece's
// "nmt" rules).
class Nmt : public Normalizer {
 public:
  AlignedText apply(const AlignedText& text) const override {
    return map_chars(text, [](char32_t c, Span origin, AlignedText& out) {
      const bool removed = (c >= 1 && c <= 8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F ||
                           c == 0x8F || c == 0x9F;
      if (removed) return;
      const bool blank = c == 9 || c == 0xA || c == 0xC || c == 0xD || c == 0x1680 ||
                         (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 ||
                         c == 0x2581 || c == 0xFEFF || c == 0xFFFD;
      out.append(blank ? U' ' : c, origin);
    });
  }
};

class Strip : public Normalizer {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}
  AlignedText apply(const AlignedText& text) const override {
    const std::string_view bytes = text.text();
    std::size_t begin = 0, end = bytes.size();
    if (left_) begin = skip_white_space(bytes, 0);
    if (right_) end = std::max(begin, skip_white_space_back(bytes, end));
    if (begin == 0 && end == bytes.size()) return text;
    AlignedText out(text, end - begin);
    out.append(text, {static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(end)});
    return out;
  }

 private:
  bool left_, right_;
};

class Prepend : public Normalizer {
 public:
  explicit Prepend(std::string bytes) : bytes_(std::move(bytes)) {}
  AlignedText apply(const AlignedText& text) const override {
    AlignedText out = text;
    out.prepend(bytes_);
    return out;
  }

 private:
  std::string bytes_;
};

class Replace : public Normalizer {
 public:
  Replace(Pattern pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  AlignedText apply(const AlignedText& text) const override {
    std::vector<Span> matches;
    pattern_.find_all(text.text(), matches);
    if (matches.empty()) return text;
    AlignedText out(text, text.text().size() + matches.size() * content_.size());
    std::uint32_t last = 0;
    for (const Span& match : matches) {
      out.append(text, {last, match.begin});
      // What is put in has the origin of the last byte that it replaces.
      const bool tracked = text.tracks() && match.end > 0;
      const Span origin =
          tracked ? text.original({match.end - 1, match.end}) : Span{text.base(), text.base()};
      for (std::size_t at = 0; at < content_.size();) out.append(next_char(content_, at), origin);
      last = match.end;
    }
    out.append(text, {last, static_cast<std::uint32_t>(text.text().size())});
    return out;
  }

 private:
  Pattern pattern_;
  std::string content_;
};

class Precompiled : public Normalizer {
 public:
  explicit Precompiled(std::string_view blob) : map_(blob) {}
  AlignedText apply(const AlignedText& text) const override { return map_.apply(text); }

 private:
  CharsMap map_;
};

class VisibleBytes : public Normalizer {
 public:
  AlignedText apply(const AlignedText& text) const override { return visible_text(text); }
};

}  // namespace

AlignedText visible_text(const AlignedText& text) {
  AlignedText out(text, text.text().size() * 2);
  const std::string_view bytes = text.text();
  for (std::size_t at = 0; at < bytes.size();) {
    const auto begin = static_cast<std::uint32_t>(at);
    const auto end = static_cast<std::uint32_t>(at + char_length(bytes[at]));
    const Span origin = text.tracks() ? text.original({begin, end}) : Span{};
    for (; at < end; ++at) out.append(visible_byte(static_cast<unsigned char>(bytes[at])), origin);
  }
  return out;
}

std::unique_ptr<const Normalizer> make_plain_normalizer(const std::string& type, const Json& json) {
  if (type == "Lowercase") return std::make_unique<Lowercase>();
  if (type == "NFC") return std::make_unique<Form>(NormalForm{false, true});
  if (type == "NFD") return std::make_unique<Form>(NormalForm{false, false});
  if (type == "NFKC") return std::make_unique<Form>(NormalForm{true, true});
  if (type == "NFKD") return std::make_unique<Form>(NormalForm{true, false});
  if (type == "StripAccents") return std::make_unique<StripAccents>();
  if (type == "Nmt") return std::make_unique<Nmt>();
  if (type == "ByteLevel") return std::make_unique<VisibleBytes>();
  if (type == "Strip") {
    return std::make_unique<Strip>(flag_or(json, "strip_left", true),
                                   flag_or(json, "strip_right", true));
  }
  if (type == "Prepend") return std::make_unique<Prepend>(json.at("prepend").as_string());
  if (type == "Replace") {
    return std::make_unique<Replace>(Pattern::parse(json.at("pattern")),
                                     json.at("content").as_string());
  }
  if (type == "Precompiled") {
    const std::string blob = string_or(json, "precompiled_charsmap", "");
    return std::make_unique<Precompiled>(decode_base64(blob));
  }
  return nullptr;
}

}  // namespace qkv::inline v0::text
