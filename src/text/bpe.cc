// Byte-pair encoding (Sennrich et al. 2016, "Neural machine translation of rare words with subword
// units").
#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <queue>
#include <span>
#include <unordered_map>

#include "base/check.h"
#include "text/flat_map.h"
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
  std::unordered_map<std::string, std::int32_t> whole_words;  // filled only for ignore_merges
};

class Bpe : public TokenModel {
 public:
  explicit Bpe(BpeParts parts) : parts_(std::move(parts)) {}

  void tokenize(std::string_view word, std::vector<Piece>& pieces) const override {
    if (!parts_.whole_words.empty()) {
      const auto found = parts_.whole_words.find(std::string(word));
      if (found != parts_.whole_words.end()) {
        pieces.push_back({found->second, {0, static_cast<std::uint32_t>(word.size())}});
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
    for (std::size_t at = 0; at < word.size();) {
      const auto begin = static_cast<std::uint32_t>(at);
      const std::int32_t* id = parts_.char_ids.find(next_char(word, at));
      const Span span{begin, static_cast<std::uint32_t>(at)};
      if (id != nullptr) {
        pieces.push_back({*id, span});
      } else {
        append_unknown(span, pieces, first);
      }
    }
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
std::pair<std::string, std::string> parse_merge(const Json& json) {
  if (json.is_array()) {
    require<ModelError>(json.size() == 2, "tokenizer", "expected merges of two pieces, got {}",
                        json.size());
    return {json.at(std::size_t{0}).as_string(), json.at(1).as_string()};
  }
  const std::string& text = json.as_string();
  const std::size_t space = text.find(' ');
  require<ModelError>(space != std::string::npos && text.find(' ', space + 1) == std::string::npos,
                      "tokenizer",
                      "expected a merge of two pieces with a space between them, got '{}'", text);
  return {text.substr(0, space), text.substr(space + 1)};
}

// Options of the format that change the result and are not known here.
void refuse_unknown_options(const Json& json) {
  for (const char* key :
       {"dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"}) {
    const Json* value = json.find(key);
    const bool off = value == nullptr || value->is_null() ||
                     (value->is_bool() && !value->as_bool()) ||
                     (value->is_string() && value->as_string().empty());
    require<UnsupportedError>(off, "tokenizer", "expected a BPE model without {}, got {}", key,
                              value == nullptr ? "" : value->dump());
  }
}

bool is_set(const Json& json, const char* key) {
  const Json* value = json.find(key);
  return value != nullptr && !value->is_null() && value->as_bool();
}

}  // namespace

std::unique_ptr<const TokenModel> make_bpe(const Json& json, const Vocabulary& vocabulary,
                                           bool byte_level) {
  refuse_unknown_options(json);
  const std::unordered_map<std::string_view, std::int32_t> ids(vocabulary.begin(),
                                                               vocabulary.end());
  const auto id_of = [&](const std::string& token) {
    const auto found = ids.find(token);
    require<ModelError>(found != ids.end(), "tokenizer",
                        "expected '{}' of the merges in the vocabulary, got none", token);
    return found->second;
  };
  BpeParts parts;
  parts.byte_level = byte_level;
  for (int b = 0; b < 256; ++b) {
    const auto found = ids.find(to_visible(std::string(1, static_cast<char>(b))));
    parts.byte_ids[static_cast<std::size_t>(b)] = found == ids.end() ? -1 : found->second;
  }
  if (!byte_level) {
    parts.char_ids = FlatMap<std::int32_t>(vocabulary.size());
    for (const auto& [token, id] : vocabulary) {
      if (token.empty() || char_length(token[0]) != token.size()) continue;
      std::size_t at = 0;
      parts.char_ids.insert(next_char(token, at), id);
    }
  }
  const Json::Array& merges = json.at("merges").as_array();
  parts.any_merge = !merges.empty();
  parts.merges = FlatMap<Merge>(merges.size());
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const auto [left, right] = parse_merge(merges[rank]);
    parts.merges[pair_key(id_of(left), id_of(right))] = {static_cast<std::uint32_t>(rank),
                                                         id_of(left + right)};
  }
  if (const Json* unknown = json.find("unk_token"); unknown != nullptr && !unknown->is_null()) {
    parts.unknown = id_of(unknown->as_string());
  }
  parts.fuse_unknown = is_set(json, "fuse_unk");
  if (is_set(json, "ignore_merges")) {
    std::string bytes;
    for (const auto& [token, id] : vocabulary) {
      if (!byte_level) {
        parts.whole_words.emplace(token, id);
      } else if (from_visible(token, bytes)) {
        parts.whole_words.emplace(bytes, id);
      }
    }
  }
  return std::make_unique<Bpe>(std::move(parts));
}

}  // namespace qkv::inline v0::text
