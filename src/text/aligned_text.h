// A text on its way through the tokenizer: what it has become, and where each byte came from.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace qkv::inline v0::text {

// Bytes [begin, end).
struct Span {
  std::uint32_t begin = 0, end = 0;
  bool operator==(const Span&) const = default;
};

class AlignedText {
 public:
  // A part of the original that begins at byte `base` of it. Without `track`, origins are not kept.
  AlignedText(std::string_view part, std::uint32_t base, bool track)
      : base_(base), track_(track), text_(part) {}
  // An empty text to append to.
  explicit AlignedText(bool track) : identity_(false), track_(track) {}

  std::string_view text() const { return text_; }
  bool tracks() const { return track_; }

  // The bytes of the original that a non-empty span of this text came from.
  Span original(Span span) const {
    if (identity_) return {base_ + span.begin, base_ + span.end};
    return {origins_[span.begin].begin, origins_[span.end - 1].end};
  }

  void append(char32_t c, Span original);
  void append_ascii(char c, Span original) {
    text_ += c;
    if (track_) origins_.push_back(original);
  }
  // Puts one character before the text; it has the origin of the first byte, or none in an empty
  // text.
  void prepend(char c);
  // The part `span` as a text of its own.
  AlignedText part(Span span) const;

 private:
  std::uint32_t base_ = 0;
  bool identity_ = true;  // byte i of the text is byte base_ + i of the original
  bool track_;
  std::string text_;
  std::vector<Span> origins_;  // of each byte, when not the identity
};

}  // namespace qkv::inline v0::text
