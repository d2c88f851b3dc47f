#include "text/aligned_text.h"

#include "text/unicode.h"

namespace qkv::inline v0::text {

void AlignedText::append(char32_t c, Span original) {
  append_utf8(text_, c);
  if (track_) origins_.resize(text_.size(), original);
}

void AlignedText::append(const AlignedText& source, Span span) {
  text_ += source.text().substr(span.begin, span.end - span.begin);
  if (!track_) return;
  for (std::uint32_t i = span.begin; i < span.end; ++i)
    origins_.push_back(source.original({i, i + 1}));
}

void AlignedText::append(std::string_view bytes, const AlignedText& source, std::uint32_t at) {
  text_ += bytes;
  if (track_) origins_.resize(text_.size(), source.original({at, at + 1}));
}

void AlignedText::prepend(std::string_view bytes) {
  if (text_.empty()) return;
  AlignedText result(*this, text_.size() + bytes.size());
  const auto size = static_cast<std::uint32_t>(text_.size());
  result.text_ += bytes;
  if (track_) {
    const auto first = static_cast<std::uint32_t>(char_length(text_[0]));
    result.origins_.resize(bytes.size(), original({0, first}));
  }
  result.append(*this, {0, size});
  *this = std::move(result);
}

AlignedText AlignedText::changed(std::span<const CharChange> changes) const {
  AlignedText result(*this, text_.size() + text_.size() / 8);
  std::size_t at = 0;  // behind what is used up
  Span origin{base_, base_};
  const auto skip = [&] {
    if (at < text_.size()) at += char_length(text_[at]);
  };
  for (const auto& [c, change] : changes) {
    if (change <= 0) {
      const auto begin = static_cast<std::uint32_t>(at);
      skip();
      if (track_ && at > begin) origin = original({begin, static_cast<std::uint32_t>(at)});
      for (std::int32_t n = change; n < 0; ++n) skip();
    } else if (track_ && at > 0) {
      origin = original({static_cast<std::uint32_t>(at - 1), static_cast<std::uint32_t>(at)});
    }
    result.append(c, origin);
  }
  return result;
}

AlignedText AlignedText::part(Span span) const {
  AlignedText result(text().substr(span.begin, span.end - span.begin), base_, track_);
  if (identity_) {
    result.base_ = base_ + span.begin;
    return result;
  }
  result.identity_ = false;
  if (track_) {
    result.origins_.assign(origins_.begin() + span.begin, origins_.begin() + span.end);
    if (span.begin < span.end) result.base_ = origins_[span.begin].begin;
  }
  return result;
}

}  // namespace qkv::inline v0::text
