#include "text/chars_map.h"

#include <array>
#include <cstring>

#include <utf8proc.h>

#include "base/check.h"
#include "base/json.h"
#include "text/unicode.h"

namespace qkv::inline v0::text {
namespace {

// The units of a double array (Yata's darts-clone): label in the low byte, bit 8 marks a node with
// a value, bit 31 a value itself; the rest is the distance to the children.
constexpr std::uint32_t label_of(std::uint32_t unit) { return unit & 0x800000FFu; }
constexpr bool has_leaf(std::uint32_t unit) { return ((unit >> 8) & 1) != 0; }
constexpr std::uint32_t offset_of(std::uint32_t unit) {
  return (unit >> 10) << ((unit & 0x200u) >> 6);
}

void replace(std::vector<CharChange>& changes, std::string_view old, std::string_view made) {
  const auto old_count = static_cast<std::int32_t>(count_chars(old));
  const std::size_t first = changes.size();
  for (std::size_t at = 0; at < made.size();) changes.push_back({next_char(made, at), 0});
  const auto made_count = static_cast<std::int32_t>(changes.size() - first);
  const std::int32_t more = made_count - old_count;
  if (more > 0) {
    for (std::size_t i = changes.size() - static_cast<std::size_t>(more); i < changes.size(); ++i)
      changes[i].change = 1;
  } else if (more < 0 && !changes.empty()) {
    changes.back().change += more;
  }
}

// The end of the grapheme cluster that begins at `at` (UAX 29, extended).
std::size_t end_of_grapheme(std::string_view text, std::size_t at) {
  std::size_t end = at;
  utf8proc_int32_t state = 0;
  auto before = static_cast<utf8proc_int32_t>(next_char(text, end));
  while (end < text.size()) {
    const bool plain = before < 0x80 && before != '\r' && static_cast<signed char>(text[end]) >= 0;
    if (plain) break;
    std::size_t next = end;
    const auto c = static_cast<utf8proc_int32_t>(next_char(text, next));
    if (utf8proc_grapheme_break_stateful(before, c, &state)) break;
    before = c;
    end = next;
  }
  return end;
}

}  // namespace

CharsMap::CharsMap(std::string_view blob) {
  if (blob.empty()) return;
  std::uint32_t size = 0;
  require<ModelError>(blob.size() > sizeof(size), "tokenizer",
                      "expected a table of replacements, got {} bytes", blob.size());
  std::memcpy(&size, blob.data(), sizeof(size));
  blob.remove_prefix(sizeof(size));
  require<ModelError>(size <= blob.size() && size % 4 == 0 && size > 0, "tokenizer",
                      "expected a table of replacements that ends in its {} bytes, got {}",
                      blob.size(), size);
  units_.resize(size / 4);
  std::memcpy(units_.data(), blob.data(), size);
  replacements_ = blob.substr(size);
  const std::size_t bad = find_invalid_utf8(replacements_);
  require<ModelError>(bad == std::string::npos, "tokenizer",
                      "expected UTF-8 in the table of replacements, got an invalid byte at {}",
                      bad);
}

std::optional<CharsMap::Match> CharsMap::find(std::string_view text, bool longest) const {
  if (units_.empty()) return std::nullopt;
  std::optional<Match> best;
  std::uint32_t node = offset_of(units_[0]);
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte == 0) break;
    node ^= byte;
    if (node >= units_.size()) break;
    const std::uint32_t unit = units_[node];
    if (label_of(unit) != byte) break;
    node ^= offset_of(unit);
    if (!has_leaf(unit)) continue;
    if (node >= units_.size()) break;
    const std::size_t begin = units_[node] & 0x7FFFFFFFu;
    if (begin >= replacements_.size()) break;
    // A table made by hand could point into the middle of a character: that is no entry.
    if ((static_cast<unsigned char>(replacements_[begin]) & 0xC0) == 0x80) break;
    const std::size_t end = std::min(replacements_.find('\0', begin), replacements_.size());
    best = Match{std::string_view(replacements_).substr(begin, end - begin), i + 1};
    if (!longest) break;
  }
  return best;
}

std::optional<CharsMap::Match> CharsMap::shortest(std::string_view text) const {
  return find(text, false);
}
std::optional<CharsMap::Match> CharsMap::longest(std::string_view text) const {
  return find(text, true);
}

AlignedText CharsMap::apply(const AlignedText& text) const {
  const std::string_view bytes = text.text();
  std::vector<CharChange> changes;
  changes.reserve(bytes.size());
  bool modified = false;
  const auto change = [&](std::string_view part) {
    const std::optional<Match> found = shortest(part);
    if (!found) return false;
    replace(changes, part, found->replacement);
    return modified = true;
  };
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t end = end_of_grapheme(bytes, at);
    const std::string_view grapheme = bytes.substr(at, end - at);
    if (grapheme.size() < 6 && change(grapheme)) {
      at = end;
      continue;
    }
    while (at < end) {
      const std::size_t begin = at;
      const char32_t c = next_char(bytes, at);
      if (!change(bytes.substr(begin, at - begin))) changes.push_back({c, 0});
    }
  }
  return modified ? text.changed(changes) : text;
}

std::string decode_base64(std::string_view text) {
  static const std::array<std::int8_t, 256> values = [] {
    std::array<std::int8_t, 256> table{};
    table.fill(-1);
    constexpr std::string_view kDigits =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (std::size_t i = 0; i < kDigits.size(); ++i)
      table[static_cast<unsigned char>(kDigits[i])] = static_cast<std::int8_t>(i);
    return table;
  }();
  while (text.ends_with('=')) text.remove_suffix(1);
  std::string bytes;
  bytes.reserve(text.size() * 3 / 4);
  std::uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    const std::int8_t value = values[static_cast<unsigned char>(c)];
    require<ModelError>(value >= 0, "tokenizer", "expected base64, got the byte {}",
                        static_cast<int>(static_cast<unsigned char>(c)));
    bits = (bits << 6) | static_cast<std::uint32_t>(value);
    count += 6;
    if (count >= 8) bytes += static_cast<char>((bits >> (count -= 8)) & 0xFF);
  }
  return bytes;
}

}  // namespace qkv::inline v0::text
