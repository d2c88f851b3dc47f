#include "text/unicode_forms.h"

#include <algorithm>
#include <array>
#include <unordered_map>
#include <vector>

#include <utf8proc.h>

#include "text/unicode.h"

namespace qkv::inline v0::text {
namespace {

struct Mark {
  char32_t c = 0;
  std::int32_t change = 0;
  int combining = 0;
};

int combining_class(char32_t c) {
  return c < 0x300 ? 0 : utf8proc_get_property(static_cast<utf8proc_int32_t>(c))->combining_class;
}

// Compositions of two characters, apart from Hangul: key (first << 32 | second).
using Compositions = std::unordered_map<std::uint64_t, char32_t>;

std::uint64_t pair_key(char32_t first, char32_t second) {
  return (std::uint64_t{first} << 32) | second;
}

void add_composition(Compositions& table, utf8proc_int32_t c) {
  std::array<utf8proc_int32_t, 8> parts{};
  int boundary = 0;
  const utf8proc_ssize_t n =
      utf8proc_decompose_char(c, parts.data(), parts.size(), UTF8PROC_DECOMPOSE, &boundary);
  if (n < 2 || n > 7) return;
  constexpr auto kCompose = static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE);
  std::array<utf8proc_int32_t, 8> whole = parts, head = parts;
  if (utf8proc_normalize_utf32(whole.data(), n, kCompose) != 1 || whole[0] != c) return;
  if (utf8proc_normalize_utf32(head.data(), n - 1, kCompose) != 1) return;
  table.emplace(pair_key(static_cast<char32_t>(head[0]),
                         static_cast<char32_t>(parts[static_cast<std::size_t>(n) - 1])),
                static_cast<char32_t>(c));
}

// All composed characters lie in these ranges.
const Compositions& compositions() {
  static const Compositions table = [] {
    constexpr std::pair<utf8proc_int32_t, utf8proc_int32_t> kRanges[] = {
        {0xC0, 0x3100}, {0x11000, 0x12000}, {0x16100, 0x16200}};
    Compositions made;
    for (const auto& [first, end] : kRanges) {
      for (utf8proc_int32_t c = first; c < end; ++c) add_composition(made, c);
    }
    return made;
  }();
  return table;
}

// The character that two make together, or 0.
char32_t compose(char32_t a, char32_t b) {
  constexpr char32_t kL = 0x1100, kV = 0x1161, kT = 0x11A7, kS = 0xAC00;
  if (a - kL < 19 && b - kV < 21) return kS + ((a - kL) * 21 + (b - kV)) * 28;
  if (a - kS < 11172 && (a - kS) % 28 == 0 && b > kT && b - kT < 28) return a + (b - kT);
  if (b < 0x300) return 0;
  const auto found = compositions().find(pair_key(a, b));
  return found == compositions().end() ? 0 : found->second;
}

std::vector<Mark> decomposed(std::string_view text, bool compatible) {
  std::vector<Mark> marks;
  marks.reserve(text.size());
  const auto options =
      static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE | (compatible ? UTF8PROC_COMPAT : 0));
  std::size_t run = 0;  // begin of the marks that may change places
  const auto sort_run = [&] {
    std::stable_sort(marks.begin() + static_cast<std::ptrdiff_t>(run), marks.end(),
                     [](const Mark& a, const Mark& b) { return a.combining < b.combining; });
  };
  const auto add = [&](char32_t c, std::int32_t change) {
    const int combining = combining_class(c);
    if (combining == 0) {
      if (marks.size() > run + 1) sort_run();
      run = marks.size() + 1;
    }
    marks.push_back({c, change, combining});
  };
  std::array<utf8proc_int32_t, 32> parts{};
  for (std::size_t at = 0; at < text.size();) {
    const char32_t c = next_char(text, at);
    if (c < 0xA0) {
      add(c, 0);
      continue;
    }
    int boundary = 0;
    const utf8proc_ssize_t n = utf8proc_decompose_char(
        static_cast<utf8proc_int32_t>(c), parts.data(), parts.size(), options, &boundary);
    if (n <= 0 || n > static_cast<utf8proc_ssize_t>(parts.size())) {
      add(c, 0);
      continue;
    }
    for (utf8proc_ssize_t i = 0; i < n; ++i)
      add(static_cast<char32_t>(parts[static_cast<std::size_t>(i)]), i == 0 ? 0 : 1);
  }
  if (marks.size() > run + 1) sort_run();
  return marks;
}

// UAX 15, "Canonical composition algorithm", in place.
void compose_all(std::vector<Mark>& marks) {
  std::size_t kept = 0, starter = marks.size();
  for (std::size_t i = 0; i < marks.size(); ++i) {
    const Mark mark = marks[i];
    if (starter < kept) {
      const bool adjacent = starter + 1 == kept;
      const bool blocked = !adjacent && marks[kept - 1].combining >= mark.combining;
      const char32_t made = blocked ? 0 : compose(marks[starter].c, mark.c);
      if (made != 0) {
        marks[starter].c = made;
        marks[starter].change += mark.change - 1;
        continue;
      }
    }
    if (mark.combining == 0) starter = kept;
    marks[kept++] = mark;
  }
  marks.resize(kept);
}

}  // namespace

AlignedText to_normal_form(const AlignedText& text, NormalForm form) {
  // Below U+00A0 nothing changes in any form; below U+0300 nothing in NFC.
  const unsigned char first = form.composed && !form.compatible ? 0xCC : 0xC2;
  const std::string_view bytes = text.text();
  if (std::none_of(bytes.begin(), bytes.end(),
                   [&](char c) { return static_cast<unsigned char>(c) >= first; }))
    return text;
  std::vector<Mark> marks = decomposed(bytes, form.compatible);
  if (form.composed) compose_all(marks);
  std::vector<CharChange> changes;
  changes.reserve(marks.size());
  for (const Mark& mark : marks) changes.push_back({mark.c, mark.change});
  return text.changed(changes);
}

}  // namespace qkv::inline v0::text
