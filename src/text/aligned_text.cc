#include "text/aligned_text.h"

#include "text/unicode.h"

namespace qkv::inline v0::text {

void AlignedText::append(char32_t c, Span original) {
  append_utf8(text_, c);
  if (track_) origins_.resize(text_.size(), original);
}

void AlignedText::prepend(char c) {
  if (track_) {
    if (identity_) {
      origins_.clear();
      for (std::uint32_t i = 0; i < text_.size(); ++i)
        origins_.push_back({base_ + i, base_ + i + 1});
    }
    origins_.insert(origins_.begin(), origins_.empty() ? Span{base_, base_} : origins_.front());
  }
  identity_ = false;
  text_.insert(text_.begin(), c);
}

AlignedText AlignedText::part(Span span) const {
  AlignedText result(track_);
  result.text_ = text_.substr(span.begin, span.end - span.begin);
  if (identity_) {
    result.identity_ = true;
    result.base_ = base_ + span.begin;
  } else if (track_) {
    result.origins_.assign(origins_.begin() + span.begin, origins_.begin() + span.end);
  }
  return result;
}

}  // namespace qkv::inline v0::text
