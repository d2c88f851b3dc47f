#include "text/pipeline.h"

namespace qkv::inline v0::text {
namespace {

const Json& member(const Json& json, std::string_view key) {
  static const Json absent;
  const Json* value = json.find(key);
  return value == nullptr ? absent : *value;
}

// True if the words of this pre-tokenizer are bytes.
bool is_byte_level(const Json& pre_tokenizer) {
  const Json* type = pre_tokenizer.find("type");
  return type != nullptr && type->as_string() == "ByteLevel";
}

}  // namespace

WordFinder::WordFinder(const Json& json)
    : normalizer_(make_normalizer(member(json, "normalizer"))),
      pre_tokenizer_(make_pre_tokenizer(member(json, "pre_tokenizer"))),
      byte_level_(is_byte_level(member(json, "pre_tokenizer"))) {
  if (const Json& added = member(json, "added_tokens"); !added.is_null())
    added_ = parse_added_tokens(added);
  for (const AddedToken& token : added_) {
    if (!token.normalized) {
      in_original_.insert(token, token.content);
    } else if (normalizer_ == nullptr) {
      in_normalized_.insert(token, token.content);
    } else {
      in_normalized_.insert(token, normalizer_->apply(AlignedText(token.content, 0, false)).text());
    }
  }
}

void WordFinder::find(std::string_view text, bool parse_special, bool track,
                      FunctionRef<void(std::int32_t, Span)> token,
                      FunctionRef<void(const AlignedText&, const std::vector<Span>&)> words) const {
  std::vector<Span> found;
  const auto find_words = [&](AlignedText& piece) {
    found.clear();
    if (pre_tokenizer_ != nullptr) {
      pre_tokenizer_->split(piece, found);
    } else if (!piece.text().empty()) {
      found.push_back({0, static_cast<std::uint32_t>(piece.text().size())});
    }
    words(piece, found);
  };
  std::vector<TextPart> parts, inner;
  in_original_.split(text, parse_special, parts);
  for (const TextPart& part : parts) {
    if (part.id >= 0) {
      token(part.id, part.span);
      continue;
    }
    AlignedText piece(text.substr(part.span.begin, part.span.end - part.span.begin),
                      part.span.begin, track);
    if (normalizer_ != nullptr) piece = normalizer_->apply(piece);
    if (in_normalized_.empty()) {
      find_words(piece);
      continue;
    }
    inner.clear();
    in_normalized_.split(piece.text(), parse_special, inner);
    for (const TextPart& sub : inner) {
      if (sub.id >= 0) {
        token(sub.id, track ? piece.original(sub.span) : Span{});
      } else {
        AlignedText rest = piece.part(sub.span);
        find_words(rest);
      }
    }
  }
}

}  // namespace qkv::inline v0::text
