#include "text/pipeline.h"

namespace qkv::inline v0::text {
namespace {

const Json& member(const Json& json, std::string_view key) {
  static const Json absent;
  const Json* value = json.find(key);
  return value == nullptr ? absent : *value;
}

// True if a Metaspace that looks at where in the text a word lies is not the first to cut.
bool looks_at_places(const Json& pre_tokenizer) {
  const Json* parts = pre_tokenizer.find("pretokenizers");
  if (parts == nullptr) return false;
  const Json::Array& list = parts->as_array();
  for (std::size_t i = 1; i < list.size(); ++i) {
    const Json* scheme = list[i].find("prepend_scheme");
    if (scheme != nullptr && scheme->is_string() && scheme->as_string() == "first") return true;
  }
  return false;
}

}  // namespace

WordFinder::WordFinder(const Json& json, bool plain_bytes,
                       std::unique_ptr<const Normalizer> normalizer)
    : normalizer_(normalizer != nullptr ? std::move(normalizer)
                                        : make_normalizer(member(json, "normalizer"))),
      pre_tokenizer_(make_pre_tokenizer(member(json, "pre_tokenizer"), plain_bytes)),
      byte_level_(plain_bytes && ends_in_byte_level(member(json, "pre_tokenizer"))),
      needs_origins_(looks_at_places(member(json, "pre_tokenizer"))) {
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

void WordFinder::find_words(
    AlignedText& piece,
    FunctionRef<void(const AlignedText&, const std::vector<Span>&)> words) const {
  thread_local std::vector<Span> found;
  found.clear();
  if (!piece.text().empty()) {
    found.push_back({0, static_cast<std::uint32_t>(piece.text().size())});
    if (pre_tokenizer_ != nullptr) pre_tokenizer_->split(piece, found);
  }
  words(piece, found);
}

void WordFinder::find(std::string_view text, bool parse_special, bool track,
                      FunctionRef<void(std::int32_t, Span)> token,
                      FunctionRef<void(const AlignedText&, const std::vector<Span>&)> words) const {
  track = track || needs_origins_;
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
      find_words(piece, words);
      continue;
    }
    inner.clear();
    in_normalized_.split(piece.text(), parse_special, inner);
    for (const TextPart& sub : inner) {
      if (sub.id >= 0) {
        token(sub.id, track ? piece.original(sub.span) : Span{});
      } else if (sub.span.begin == 0 && sub.span.end == piece.text().size()) {
        find_words(piece, words);
      } else {
        AlignedText rest = piece.part(sub.span);
        find_words(rest, words);
      }
    }
  }
}

}  // namespace qkv::inline v0::text
