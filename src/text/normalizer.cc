#include "text/normalizer.h"

#include <vector>

#include "base/check.h"
#include "text/bert_classes.h"
#include "text/json_fields.h"
#include "text/unicode.h"

namespace qkv::inline v0::text {
namespace {

bool is_chinese(char32_t c) {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) ||
         (c >= 0x20000 && c <= 0x2A6DF) || (c >= 0x2A700 && c <= 0x2B81F) ||
         (c >= 0x2B920 && c <= 0x2CEAF) || (c >= 0xF900 && c <= 0xFAFF) ||
         (c >= 0x2F800 && c <= 0x2FA1F);
}

class BertNormalizer : public Normalizer {
 public:
  explicit BertNormalizer(const BertNormalizerOptions& options) : options_(options) {}

  AlignedText apply(const AlignedText& text) const override {
    AlignedText out(text.tracks());
    const std::string_view bytes = text.text();
    std::u32string buffer, lowered;
    for (std::size_t at = 0; at < bytes.size();) {
      const std::size_t begin = at;
      char32_t c = next_char(bytes, at);
      const Span span{static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(at)};
      const Span origin = text.tracks() ? text.original(span) : Span{};
      if (options_.clean_text && !clean(c)) continue;
      if (c < 0x80) {
        const bool upper = options_.lowercase && c - U'A' < 26;
        out.append_ascii(static_cast<char>(upper ? c + 32 : c), origin);
        continue;
      }
      const bool spaced = options_.handle_chinese_chars && is_chinese(c);
      if (spaced) out.append_ascii(' ', origin);
      append_changed(out, c, origin, buffer, lowered);
      if (spaced) out.append_ascii(' ', origin);
    }
    return out;
  }

 private:
  // False if the character is to be removed.
  static bool clean(char32_t& c) {
    // U+0085 is a blank, but a control character first.
    if (c == U'\t' || c == U'\n' || c == U'\r' || (c > 0x85 && is_white_space(c))) {
      c = U' ';
      return true;
    }
    if (c >= 0x20 && c < 0x7F) return true;
    return c != 0 && c != 0xFFFD && !is_bert_control(c);
  }

  void append_changed(AlignedText& out, char32_t c, Span origin, std::u32string& buffer,
                      std::u32string& lowered) const {
    buffer.clear();
    if (options_.strip_accents) {
      append_decomposed(buffer, c);
      std::erase_if(buffer, is_bert_accent);
    } else {
      buffer += c;
    }
    if (options_.lowercase) {
      lowered.clear();
      for (const char32_t part : buffer) append_lower(lowered, part);
      buffer.swap(lowered);
    }
    for (const char32_t part : buffer) out.append(part, origin);
  }

  BertNormalizerOptions options_;
};

class NormalizerSequence : public Normalizer {
 public:
  explicit NormalizerSequence(std::vector<std::unique_ptr<const Normalizer>> parts)
      : parts_(std::move(parts)) {}
  AlignedText apply(const AlignedText& text) const override {
    AlignedText result = text;
    for (const auto& part : parts_) result = part->apply(result);
    return result;
  }

 private:
  std::vector<std::unique_ptr<const Normalizer>> parts_;
};

}  // namespace

std::unique_ptr<const Normalizer> make_normalizer(const Json& json) {
  if (json.is_null()) return nullptr;
  const std::string& type = json.at("type").as_string();
  if (type == "BertNormalizer") {
    BertNormalizerOptions options;
    options.clean_text = flag_or(json, "clean_text", true);
    options.handle_chinese_chars = flag_or(json, "handle_chinese_chars", true);
    options.lowercase = flag_or(json, "lowercase", true);
    options.strip_accents =
        flag_or(json, "strip_accents", options.lowercase);  // unset: follows the case
    return std::make_unique<BertNormalizer>(options);
  }
  if (type == "Sequence") {
    std::vector<std::unique_ptr<const Normalizer>> parts;
    for (const Json& part : json.at("normalizers").as_array()) {
      if (auto normalizer = make_normalizer(part)) parts.push_back(std::move(normalizer));
    }
    return std::make_unique<NormalizerSequence>(std::move(parts));
  }
  if (auto plain = make_plain_normalizer(type, json)) return plain;
  fail<UnsupportedError>(
      "tokenizer",
      "expected the normalizer BertNormalizer, ByteLevel, Lowercase, NFC, NFD, NFKC, NFKD, Nmt, "
      "Precompiled, Prepend, Replace, Sequence, Strip or StripAccents, got '{}'",
      type);
}

Json bert_normalizer_json(const BertNormalizerOptions& options) {
  return Json(Json::Object{{"type", "BertNormalizer"},
                           {"clean_text", options.clean_text},
                           {"handle_chinese_chars", options.handle_chinese_chars},
                           {"strip_accents", options.strip_accents},
                           {"lowercase", options.lowercase}});
}

}  // namespace qkv::inline v0::text
