// Byte-pair encoding (Sennrich et al. 2016, "Neural machine translation of rare words with subword
// units").
#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <queue>
#include <span>

#include "base/check.h"
#include "text/decoder.h"
#include "text/flat_map.h"
#include "text/json_fields.h"
#include "text/piece_table.h"
#include "text/token_model.h"
#include "text/unicode.h"

namespace qkv::inline v0::text {
namespace {

constexpr std::uint32_t kNoRank = std::numeric_limits<std::uint32_t>::max();

struct Merge {
  std::uint32_t rank = kNoRank;
  std::int32_t id = -1;
};

constexpr std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
  return (std::uint64_t{static_cast<std::uint32_t>(left)} << 32) |
         static_cast<std::uint32_t>(right);
}

struct BpeParts {
  bool byte_level = false;
  std::array<std::int32_t, 256> byte_ids{};
  FlatMap<std::int32_t> char_ids;  // by code point
  FlatMap<Merge> merges;
  bool any_merge = false;
  std::optional<std::int32_t> unknown;
  bool fuse_unknown = false;
  bool byte_fallback = false;
  std::array<std::int32_t, 256> fallback_ids{};  // of "<0x00>" and so on; -1: none
  std::string prefix, suffix;                    // of characters inside a word; of the last one
  PieceTable tokens;                             // filled only for a prefix or suffix
  PieceTable whole_words;                        // filled only for ignore_merges
  bool ignore_merges = false;
};

class Bpe : public TokenModel {
 public:
  explicit Bpe(BpeParts parts) : parts_(std::move(parts)) {}

  void tokenize(std::string_view word, std::vector<Piece>& pieces) const override {
    if (parts_.ignore_merges) {
      if (const std::int32_t id = parts_.whole_words.find(word); id >= 0) {
        pieces.push_back({id, {0, static_cast<std::uint32_t>(word.size())}});
        return;
      }
    }
    const std::size_t first = pieces.size();
    parts_.byte_level ? append_bytes(word, pieces) : append_chars(word, pieces);
    const std::size_t count = pieces.size() - first;
    if (!parts_.any_merge || count < 2) return;
    pieces.resize(first + (count <= kShort ? merge_short({pieces.data() + first, count})
                                           : merge_long({pieces.data() + first, count})));
  }

 private:
  static constexpr std::size_t kShort = 64;

  void append_unknown(Span span, std::vector<Piece>& pieces, std::size_t first) const {
    if (!parts_.unknown) return;  // as in the reference implementation: left out
    const bool fuse =
        parts_.fuse_unknown && pieces.size() > first && pieces.back().id == *parts_.unknown;
    if (fuse) {
      pieces.back().span.end = span.end;
    } else {
      pieces.push_back({*parts_.unknown, span});
    }
  }

  void append_bytes(std::string_view word, std::vector<Piece>& pieces) const {
    const std::size_t first = pieces.size();
    for (std::uint32_t i = 0; i < word.size(); ++i) {
      const std::int32_t id = parts_.byte_ids[static_cast<unsigned char>(word[i])];
      if (id >= 0) {
        pieces.push_back({id, {i, i + 1}});
      } else {
        append_unknown({i, i + 1}, pieces, first);
      }
    }
  }

  void append_chars(std::string_view word, std::vector<Piece>& pieces) const {
    const std::size_t first = pieces.size();
    const bool affixed = !parts_.prefix.empty() || !parts_.suffix.empty();
    for (std::size_t at = 0; at < word.size();) {
      const auto begin = static_cast<std::uint32_t>(at);
      const char32_t c = next_char(word, at);
      const Span span{begin, static_cast<std::uint32_t>(at)};
      const std::int32_t id = affixed ? affixed_id(word, span) : char_id(c);
      if (id >= 0) {
        pieces.push_back({id, span});
      } else if (!parts_.byte_fallback || !append_fallback(word, span, pieces)) {
        append_unknown(span, pieces, first);
      }
    }
  }

  std::int32_t char_id(char32_t c) const {
    const std::int32_t* id = parts_.char_ids.find(c);
    return id == nullptr ? -1 : *id;
  }

  std::int32_t affixed_id(std::string_view word, Span span) const {
    std::string text(word.substr(span.begin, span.end - span.begin));
    if (span.begin > 0) text.insert(0, parts_.prefix);
    if (span.end == word.size()) text += parts_.suffix;
    return parts_.tokens.find(text);
  }

  bool append_fallback(std::string_view word, Span span, std::vector<Piece>& pieces) const {
    const auto id_of = [&](std::uint32_t i) {
      return parts_.fallback_ids[static_cast<unsigned char>(word[i])];
    };
    for (std::uint32_t i = span.begin; i < span.end; ++i) {
      if (id_of(i) < 0) return false;
    }
    for (std::uint32_t i = span.begin; i < span.end; ++i) pieces.push_back({id_of(i), {i, i + 1}});
    return true;
  }

  Merge merge_of(const Piece& left, const Piece& right) const {
    const Merge* merge = parts_.merges.find(pair_key(left.id, right.id));
    return merge == nullptr ? Merge{} : *merge;
  }

  // Merges the pair of lowest rank, the leftmost of equals, until none is left; returns the new
  // count.
  std::size_t merge_short(std::span<Piece> p) const {
    std::array<Merge, kShort> merges;  // of piece i with piece i + 1
    std::size_t n = p.size();
    for (std::size_t i = 0; i + 1 < n; ++i) merges[i] = merge_of(p[i], p[i + 1]);
    while (n > 1) {
      std::size_t best = 0;
      for (std::size_t i = 1; i + 1 < n; ++i) {
        if (merges[i].rank < merges[best].rank) best = i;
      }
      if (merges[best].rank == kNoRank) break;
      p[best] = {merges[best].id, {p[best].span.begin, p[best + 1].span.end}};
      std::copy(p.begin() + static_cast<std::ptrdiff_t>(best) + 2,
                p.begin() + static_cast<std::ptrdiff_t>(n),
                p.begin() + static_cast<std::ptrdiff_t>(best) + 1);
      std::copy(merges.begin() + best + 1, merges.begin() + n - 1, merges.begin() + best);
      --n;
      if (best > 0) merges[best - 1] = merge_of(p[best - 1], p[best]);
      if (best + 1 < n) merges[best] = merge_of(p[best], p[best + 1]);
    }
    return n;
  }

  // The same with a heap and a linked list: n log n for words of any length.
  std::size_t merge_long(std::span<Piece> p) const {
    struct Candidate {
      std::uint32_t rank;
      std::uint32_t left;
      std::int32_t id;
      bool operator>(const Candidate& other) const {
        return rank != other.rank ? rank > other.rank : left > other.left;
      }
    };
    constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();
    const auto n = static_cast<std::uint32_t>(p.size());
    std::vector<std::uint32_t> previous(n), next(n);
    std::vector<bool> gone(n);
    std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
    const auto offer = [&](std::uint32_t left) {
      const Merge merge = merge_of(p[left], p[next[left]]);
      if (merge.rank != kNoRank) queue.push({merge.rank, left, merge.id});
    };
    for (std::uint32_t i = 0; i < n; ++i) {
      previous[i] = i == 0 ? kNone : i - 1;
      next[i] = i + 1 == n ? kNone : i + 1;
    }
    for (std::uint32_t i = 0; i + 1 < n; ++i) offer(i);
    while (!queue.empty()) {
      const Candidate top = queue.top();
      queue.pop();
      const std::uint32_t left = top.left;
      if (gone[left] || next[left] == kNone) continue;
      const std::uint32_t right = next[left];
      if (merge_of(p[left], p[right]).id != top.id) continue;  // one of the two has changed since
      p[left] = {top.id, {p[left].span.begin, p[right].span.end}};
      gone[right] = true;
      next[left] = next[right];
      if (next[left] != kNone) {
        previous[next[left]] = left;
        offer(left);
      }
      if (previous[left] != kNone) offer(previous[left]);
    }
    std::size_t kept = 0;
    for (std::uint32_t i = 0; i < n; ++i) {
      if (!gone[i]) p[kept++] = p[i];
    }
    return kept;
  }

  BpeParts parts_;
};

// A merge of tokenizer.json: ["a", "b"], or "a b" in older files.
std::pair<std::string_view, std::string_view> parse_merge(const Json& json) {
  if (json.is_array()) {
    require<ModelError>(json.size() == 2, "tokenizer", "expected merges of two pieces, got {}",
                        json.size());
    return {json.at(std::size_t{0}).as_string(), json.at(1).as_string()};
  }
  const std::string_view text = json.as_string();
  const std::size_t space = text.find(' ');
  require<ModelError>(space != text.npos && text.find(' ', space + 1) == text.npos, "tokenizer",
                      "expected a merge of two pieces with a space between them, got '{}'", text);
  return {text.substr(0, space), text.substr(space + 1)};
}

// The parts that map characters or bytes to ids.
void add_letters(const Vocabulary& vocabulary, const PieceTable& ids, const BpeOptions& options,
                 BpeParts& parts) {
  for (int b = 0; b < 256; ++b) {
    const auto byte = static_cast<unsigned char>(b);
    const auto index = static_cast<std::size_t>(b);
    parts.byte_ids[index] = ids.find(to_visible(std::string(1, static_cast<char>(b))));
    parts.fallback_ids[index] = options.byte_fallback ? ids.find(token_of_byte(byte)) : -1;
  }
  if (!options.byte_level) {
    std::size_t count = 0;
    const auto is_char = [](const std::string& token) {
      return !token.empty() && char_length(token[0]) == token.size();
    };
    for (const auto& [token, id] : vocabulary) count += is_char(token) ? 1 : 0;
    parts.char_ids = FlatMap<std::int32_t>(count);
    for (const auto& [token, id] : vocabulary) {
      if (!is_char(token)) continue;
      std::size_t at = 0;
      parts.char_ids.insert(next_char(token, at), id);
    }
  }
  if (options.ignore_merges) {
    parts.whole_words = PieceTable(vocabulary.size());
    std::string bytes;
    for (const auto& [token, id] : vocabulary) {
      if (!options.byte_level) {
        parts.whole_words.insert(token, id);
      } else if (from_visible(token, bytes)) {
        parts.whole_words.insert(bytes, id);
      }
    }
  }
}

}  // namespace

std::unique_ptr<const TokenModel> make_bpe(const Vocabulary& vocabulary, const MergeList& merges,
                                           const BpeOptions& options) {
  PieceTable ids(vocabulary.size());
  for (const auto& [token, id] : vocabulary) ids.insert(token, id);
  const auto id_of = [&](std::string_view token) {
    const std::int32_t id = ids.find(token);
    require<ModelError>(id >= 0, "tokenizer",
                        "expected '{}' of the merges in the vocabulary, got none", token);
    return id;
  };
  BpeParts parts;
  parts.byte_level = options.byte_level;
  parts.byte_fallback = options.byte_fallback;
  parts.fuse_unknown = options.fuse_unknown;
  parts.ignore_merges = options.ignore_merges;
  parts.prefix = options.prefix;
  parts.suffix = options.suffix;
  add_letters(vocabulary, ids, options, parts);
  parts.any_merge = !merges.empty();
  parts.merges = FlatMap<Merge>(merges.size());
  std::string made;
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const auto& [left, right] = merges[rank];
    require<ModelError>(right.size() >= options.prefix.size(), "tokenizer",
                        "expected a merge with '{}' before its second piece, got '{}'",
                        options.prefix, right);
    made.assign(left);
    made += right.substr(options.prefix.size());
    parts.merges[pair_key(id_of(left), id_of(right))] = {static_cast<std::uint32_t>(rank),
                                                         id_of(made)};
  }
  if (!options.unknown.empty()) parts.unknown = id_of(options.unknown);
  if (!parts.prefix.empty() || !parts.suffix.empty()) parts.tokens = std::move(ids);
  return std::make_unique<Bpe>(std::move(parts));
}

bool takes_plain_bytes(const Json& json) {
  return model_type(json) == "BPE" && string_or(json, "continuing_subword_prefix", "").empty() &&
         string_or(json, "end_of_word_suffix", "").empty() &&
         !flag_or(json, "byte_fallback", false);
}

std::unique_ptr<const TokenModel> make_bpe(const Json& json, const Vocabulary& vocabulary,
                                           bool byte_level) {
  if (const Json* dropout = json.find("dropout"); dropout != nullptr && !dropout->is_null()) {
    require<UnsupportedError>(dropout->as_double() == 0, "tokenizer",
                              "expected a BPE model without dropout, got dropout {}",
                              dropout->as_double());
  }
  BpeOptions options;
  options.byte_level = byte_level;
  options.byte_fallback = flag_or(json, "byte_fallback", false);
  options.fuse_unknown = flag_or(json, "fuse_unk", false);
  options.ignore_merges = flag_or(json, "ignore_merges", false);
  options.prefix = string_or(json, "continuing_subword_prefix", "");
  options.suffix = string_or(json, "end_of_word_suffix", "");
  options.unknown = string_or(json, "unk_token", "");
  MergeList merges;
  const Json::Array& list = json.at("merges").as_array();
  merges.reserve(list.size());
  for (const Json& merge : list) merges.push_back(parse_merge(merge));
  return make_bpe(vocabulary, merges, options);
}

}  // namespace qkv::inline v0::text
