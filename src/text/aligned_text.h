// A text on its way through the tokenizer: what it has become, and where each byte came from.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace qkv::inline v0::text {

// Bytes [begin, end).
struct Span {
  std::uint32_t begin = 0, end = 0;
  bool operator==(const Span&) const = default;
};

// One character of a changed text. `change` 0: stands for one character of the text before; 1: was
// put in, and has the origin of what is before it; -n: stands for 1 + n characters and has the
// origin of the first.
struct CharChange {
  char32_t c = 0;
  std::int32_t change = 0;
};

class AlignedText {
 public:
  // A part of the original that begins at byte `base` of it. Without `track`, origins are not kept.
  AlignedText(std::string_view part, std::uint32_t base, bool track)
      : base_(base), track_(track), text_(part) {}
  // An empty text to append to, that begins where `like` does.
  explicit AlignedText(const AlignedText& like, std::size_t reserve)
      : base_(like.base_), identity_(false), track_(like.track_) {
    text_.reserve(reserve);
    if (track_) origins_.reserve(reserve);
  }
  // An empty text to append to.
  explicit AlignedText(bool track) : identity_(false), track_(track) {}

  std::string_view text() const { return text_; }
  bool tracks() const { return track_; }
  // Where the part of the original begins that this text was made of.
  std::uint32_t base() const { return base_; }

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
  // A part of another text, as it is.
  void append(const AlignedText& source, Span span);
  void append_whole(const AlignedText& source) {
    append(source, {0, static_cast<std::uint32_t>(source.text_.size())});
  }
  // Bytes that all have the origin of byte `at` of `source`.
  void append(std::string_view bytes, const AlignedText& source, std::uint32_t at);

  // Puts bytes before the text; they have the origin of its first character. An empty text stays
  // empty.
  void prepend(std::string_view bytes);
  // The whole text as `changes` say.
  AlignedText changed(std::span<const CharChange> changes) const;
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
