// Encoding: texts to ids, with special tokens, windows and padding.
#include <algorithm>

#include "qkv/tokenizer.h"

#include "base/check.h"
#include "base/thread_pool.h"
#include "text/pipeline.h"
#include "text/unicode.h"

namespace qkv::inline v0 {
namespace {
using text::Span;
using text::TemplateItem;

// Byte positions of a text to character positions.
class CharIndex {
 public:
  explicit CharIndex(std::string_view text) {
    if (std::none_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) >= 0x80; }))
      return;
    chars_.reserve(text.size());
    std::uint32_t index = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (i > 0 && (static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) ++index;
      chars_.push_back(index);
    }
  }
  // Whole characters: a part of one counts as all of it.
  std::pair<std::int64_t, std::int64_t> chars(Span bytes) const {
    if (chars_.empty()) return {bytes.begin, bytes.end};
    if (bytes.begin == bytes.end) {
      const std::int64_t at = bytes.begin == 0 ? 0 : chars_[bytes.begin - 1] + std::int64_t{1};
      return {at, at};
    }
    return {chars_[bytes.begin], chars_[bytes.end - 1] + std::int64_t{1}};
  }

 private:
  std::vector<std::uint32_t> chars_;  // empty: every character is one byte
};

// Leaves the blanks at a byte-level token's ends out of its offsets. `keep_first`: a single blank
// in front was added and takes no place.
void trim(std::string_view token, bool keep_first, std::pair<std::int64_t, std::int64_t>& offsets) {
  const auto is_blank = [](char32_t c) {
    return c == text::visible_byte(' ') || text::is_white_space(c);
  };
  std::int64_t leading = 0, trailing = 0;
  bool only_blanks = true;
  for (std::size_t at = 0; at < token.size();) {
    const bool blank = is_blank(text::next_char(token, at));
    only_blanks = only_blanks && blank;
    if (only_blanks) ++leading;
    trailing = blank ? trailing + 1 : 0;
  }
  if (leading > 0 && !(keep_first && leading == 1))
    offsets.first = std::min(offsets.first + leading, offsets.second);
  if (trailing > 0 && offsets.second >= trailing)
    offsets.second = std::max(offsets.second - trailing, offsets.first);
}

// The tokens of one text, before special ones come around them.
struct Part {
  std::vector<std::int32_t> ids;
  std::vector<std::pair<std::int64_t, std::int64_t>> offsets;
};
using Range = std::pair<std::size_t, std::size_t>;

Part encode_part(const Tokenizer::Impl& impl, std::string_view text, const EncodeOptions& options) {
  const std::size_t bad = find_invalid_utf8(text);
  if (bad != std::string_view::npos && options.replace_invalid)
    return encode_part(impl, text::replace_invalid_utf8(text), options);
  require<DataError>(bad == std::string_view::npos, "tokenizer",
                     "expected UTF-8, got an invalid byte at position {}", bad);
  require<DataError>(text.size() < (std::size_t{1} << 31), "tokenizer",
                     "expected a text below 2 GiB, got {} bytes", text.size());
  const bool track = options.with_pieces;
  Part part;
  part.ids.reserve(text.size() / 4 + 4);
  std::vector<Span> spans;          // bytes of the original
  std::vector<bool> from_the_text;  // tokens that were found as they stand there
  thread_local std::vector<text::Piece> pieces;
  impl.words.find(
      text, options.parse_special, track,
      [&](std::int32_t id, Span span) {
        part.ids.push_back(id);
        if (!track) return;
        spans.push_back(span);
        from_the_text.resize(spans.size());
        from_the_text.back() = true;
      },
      [&](const text::AlignedText& words_text, const std::vector<Span>& words) {
        for (const Span& word : words) {
          pieces.clear();
          impl.model->tokenize(words_text.text().substr(word.begin, word.end - word.begin), pieces);
          for (const text::Piece& piece : pieces) {
            part.ids.push_back(piece.id);
            if (track)
              spans.push_back(words_text.original(
                  {word.begin + piece.span.begin, word.begin + piece.span.end}));
          }
        }
      });
  if (!track) return part;
  const CharIndex index(text);
  part.offsets.reserve(spans.size());
  for (std::size_t i = 0; i < spans.size(); ++i) {
    part.offsets.push_back(index.chars(spans[i]));
    if (!impl.post.trim_offsets) continue;
    const bool added = impl.post.add_prefix_space && (i == 0 || part.offsets.back().first == 0);
    const bool found = i < from_the_text.size() && from_the_text[i];
    trim(found ? text.substr(spans[i].begin, spans[i].end - spans[i].begin)
               : impl.tokens[static_cast<std::size_t>(part.ids[i])],
         added, part.offsets.back());
  }
  return part;
}

// Puts parts, or windows of them, into the template.
class Assembler {
 public:
  Assembler(const Tokenizer::Impl& impl, const EncodeOptions& options, bool pair)
      : impl_(impl), options_(options), items_(pair ? impl.post.pair : impl.post.single) {}

  std::size_t special_count() const {
    if (!options_.add_special_tokens) return 0;
    return static_cast<std::size_t>(std::count_if(
        items_.begin(), items_.end(), [](const TemplateItem& item) { return item.sequence < 0; }));
  }

  Encoding assemble(const std::vector<Part>& parts, const std::vector<Range>& ranges) const {
    Encoding out;
    std::size_t size = special_count();
    for (const Range& range : ranges) size += range.second - range.first;
    out.ids.reserve(size);
    out.type_ids.reserve(size);
    out.sequence_ids.reserve(size);
    for (const TemplateItem& item : items_) {
      if (item.sequence >= 0) {
        const auto n = static_cast<std::size_t>(item.sequence);
        add_part(item, parts[n], ranges[n], out);
      } else if (options_.add_special_tokens) {
        out.ids.push_back(item.id);
        out.type_ids.push_back(item.type_id);
        out.sequence_ids.push_back(-1);
        if (options_.with_pieces) out.offsets.emplace_back(0, 0);
      }
    }
    out.attention_mask.assign(out.ids.size(), 1);
    if (options_.with_pieces) {
      out.tokens.reserve(out.ids.size());
      for (const std::int32_t id : out.ids)
        out.tokens.push_back(impl_.tokens[static_cast<std::size_t>(id)]);
    }
    return out;
  }

 private:
  void add_part(const TemplateItem& item, const Part& part, Range range, Encoding& out) const {
    const auto begin = static_cast<std::ptrdiff_t>(range.first);
    const auto end = static_cast<std::ptrdiff_t>(range.second);
    out.ids.insert(out.ids.end(), part.ids.begin() + begin, part.ids.begin() + end);
    if (options_.with_pieces)
      out.offsets.insert(out.offsets.end(), part.offsets.begin() + begin,
                         part.offsets.begin() + end);
    out.type_ids.resize(out.ids.size(), item.type_id);
    out.sequence_ids.resize(out.ids.size(), item.sequence);
  }

  const Tokenizer::Impl& impl_;
  const EncodeOptions& options_;
  const std::vector<TemplateItem>& items_;
};

// How many tokens of each text of a pair stay, of `room` for both.
std::pair<std::size_t, std::size_t> share_room(std::size_t first, std::size_t second,
                                               std::size_t room, TruncationStrategy strategy) {
  if (first + second <= room) return {first, second};
  if (strategy == TruncationStrategy::kLongestFirst) {
    // The longer one is cut down to the shorter one, then both; an odd token goes to the longer.
    const std::size_t shorter = std::min(first, second);
    std::size_t low = shorter, high = shorter > room ? shorter : std::max(shorter, room - shorter);
    if (low + high > room) {
      low = room / 2;
      high = low + room % 2;
    }
    return first > second ? std::pair{high, low} : std::pair{low, high};
  }
  const bool cut_first = strategy == TruncationStrategy::kOnlyFirst;
  const std::size_t kept = cut_first ? second : first;
  require<DataError>(kept < room, "tokenizer",
                     "expected the text that is not cut to leave room, got {} tokens of it for {} "
                     "places; let truncation cut the longest first",
                     kept, room);
  return cut_first ? std::pair{room - kept, kept} : std::pair{kept, room - kept};
}

std::size_t room_of(const Truncation& truncation, std::size_t special) {
  const std::int64_t needed = static_cast<std::int64_t>(std::max<std::size_t>(special, 1));
  require<ArgumentError>(truncation.max_length >= needed, "tokenizer",
                         "expected max_length to hold at least {} (the special tokens of the "
                         "tokenizer), got {}",
                         needed, truncation.max_length);
  require<ArgumentError>(truncation.stride >= 0, "tokenizer", "expected a stride from 0, got {}",
                         truncation.stride);
  const std::size_t room = static_cast<std::size_t>(truncation.max_length) - special;
  require<ArgumentError>(
      truncation.stride == 0 || static_cast<std::size_t>(truncation.stride) < room, "tokenizer",
      "expected a stride below the room for the text, {} of max_length {}, got {}", room,
      truncation.max_length, truncation.stride);
  return room;
}

Encoding encode_parts(const Tokenizer::Impl& impl, const std::vector<Part>& parts,
                      const EncodeOptions& options) {
  const Assembler assembler(impl, options, parts.size() == 2);
  std::vector<std::vector<Range>> windows;  // of each part
  for (const Part& part : parts) windows.push_back({{0, part.ids.size()}});
  if (options.truncation) {
    const Truncation& t = *options.truncation;
    const std::size_t room = room_of(t, assembler.special_count());
    std::pair<std::size_t, std::size_t> kept{std::min(room, parts[0].ids.size()), 0};
    if (parts.size() == 2)
      kept = share_room(parts[0].ids.size(), parts[1].ids.size(), room, t.strategy);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      windows[i] = text::windows_of(parts[i].ids.size(), i == 0 ? kept.first : kept.second,
                                    static_cast<std::size_t>(t.stride), t.left);
    }
  }
  std::vector<Range> ranges;
  for (const auto& list : windows) ranges.push_back(list.front());
  Encoding encoding = assembler.assemble(parts, ranges);
  // Each further window of one text goes with what is kept of the other.
  for (std::size_t i = 0; i < windows.size(); ++i) {
    for (std::size_t w = 1; w < windows[i].size(); ++w) {
      std::vector<Range> other = ranges;
      other[i] = windows[i][w];
      encoding.overflowing.push_back(assembler.assemble(parts, other));
    }
  }
  return encoding;
}

// Pads encodings, and their windows, to one length.
void pad_all(std::span<Encoding> encodings, const EncodeOptions& options) {
  if (!options.padding) return;
  const auto each = [&](const auto& visit) {
    for (Encoding& encoding : encodings) {
      visit(encoding);
      for (Encoding& window : encoding.overflowing) visit(window);
    }
  };
  std::size_t longest = 0;
  each([&](const Encoding& e) { longest = std::max(longest, e.ids.size()); });
  const std::size_t length = text::padded_length(longest, *options.padding);
  each([&](Encoding& e) { text::pad_to(e, length, *options.padding, options.with_pieces); });
}

}  // namespace

Encoding Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  std::vector<Part> parts;
  parts.push_back(encode_part(*impl_, text, options));
  Encoding encoding = encode_parts(*impl_, parts, options);
  pad_all({&encoding, 1}, options);
  return encoding;
}

Encoding Tokenizer::encode_pair(std::string_view first, std::string_view second,
                                const EncodeOptions& options) const {
  std::vector<Part> parts;
  parts.push_back(encode_part(*impl_, first, options));
  parts.push_back(encode_part(*impl_, second, options));
  Encoding encoding = encode_parts(*impl_, parts, options);
  pad_all({&encoding, 1}, options);
  return encoding;
}

std::vector<Encoding> Tokenizer::encode_batch(std::span<const std::string> texts,
                                              const EncodeOptions& options) const {
  EncodeOptions unpadded = options;
  unpadded.padding.reset();
  std::vector<Encoding> encodings(texts.size());
  parallel_for(static_cast<std::int64_t>(texts.size()), [&](std::int64_t i) {
    const auto index = static_cast<std::size_t>(i);
    encodings[index] = encode(texts[index], unpadded);
  });
  pad_all(encodings, options);
  return encodings;
}

}  // namespace qkv::inline v0
