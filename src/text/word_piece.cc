// WordPiece: the longest piece first (Schuster and Nakajima 2012; the greedy form of BERT).
#include <algorithm>
#include <span>

#include "base/check.h"
#include "text/flat_map.h"
#include "text/token_model.h"
#include "text/unicode.h"

namespace qkv::inline v0::text {
namespace {

// Pieces that begin a word, or that continue one (without their prefix).
class PieceTable {
 public:
  explicit PieceTable(std::size_t count) : map_(count) {}
  void insert(std::string_view piece, std::int32_t id) {
    std::uint64_t hash = kHashSeed;
    for (const char c : piece) hash = hash_step(hash, c);
    map_.insert(hash, {id, static_cast<std::uint32_t>(bytes_.size()),
                       static_cast<std::uint32_t>(piece.size())});
    bytes_ += piece;
    longest_ = std::max(longest_, piece.size());
  }

  // The longest piece at the beginning of `rest`: its id and length; length 0 if there is none.
  std::pair<std::int32_t, std::size_t> longest_prefix(std::string_view rest,
                                                      std::vector<std::uint64_t>& hashes) const {
    const std::size_t limit = std::min(longest_, rest.size());
    hashes.resize(limit);
    std::uint64_t hash = kHashSeed;
    for (std::size_t i = 0; i < limit; ++i) hashes[i] = hash = hash_step(hash, rest[i]);
    for (std::size_t n = limit; n > 0; --n) {
      if (n < rest.size() && (static_cast<unsigned char>(rest[n]) & 0xC0) == 0x80)
        continue;  // inside a character
      const Entry* entry = map_.find(hashes[n - 1], [&](const Entry& e) {
        return std::string_view(bytes_).substr(e.begin, e.size) == rest.substr(0, n);
      });
      if (entry != nullptr) return {entry->id, n};
    }
    return {-1, 0};
  }

 private:
  struct Entry {
    std::int32_t id = 0;
    std::uint32_t begin = 0, size = 0;  // in bytes_
  };
  FlatMap<Entry> map_;
  std::string bytes_;
  std::size_t longest_ = 0;
};

class WordPieceModel : public TokenModel {
 public:
  WordPieceModel(const Vocabulary& vocabulary, const std::string& prefix, std::int32_t unknown,
                 std::int64_t max_chars)
      : first_(vocabulary.size()),
        more_(vocabulary.size()),
        unknown_(unknown),
        max_chars_(max_chars) {
    for (const auto& [token, id] : vocabulary) {
      if (!token.empty()) first_.insert(token, id);
      if (token.size() > prefix.size() && token.starts_with(prefix)) {
        more_.insert(std::string_view(token).substr(prefix.size()), id);
      }
    }
  }

  void tokenize(std::string_view word, std::vector<Piece>& pieces) const override {
    const std::size_t before = pieces.size();
    const Piece whole{unknown_, {0, static_cast<std::uint32_t>(word.size())}};
    if (static_cast<std::int64_t>(word.size()) > max_chars_ && count_chars(word) > max_chars_) {
      pieces.push_back(whole);
      return;
    }
    thread_local std::vector<std::uint64_t> hashes;
    for (std::size_t at = 0; at < word.size();) {
      const auto [id, length] = (at == 0 ? first_ : more_).longest_prefix(word.substr(at), hashes);
      if (length == 0) {  // one unknown part makes the whole word unknown
        pieces.resize(before);
        pieces.push_back(whole);
        return;
      }
      pieces.push_back(
          {id, {static_cast<std::uint32_t>(at), static_cast<std::uint32_t>(at + length)}});
      at += length;
    }
  }

 private:
  PieceTable first_, more_;
  std::int32_t unknown_;
  std::int64_t max_chars_;
};

}  // namespace

std::unique_ptr<const TokenModel> make_word_piece(const Json& json, const Vocabulary& vocabulary) {
  const std::string& prefix = json.at("continuing_subword_prefix").as_string();
  const std::string& unknown = json.at("unk_token").as_string();
  const auto found = std::find_if(vocabulary.begin(), vocabulary.end(),
                                  [&](const auto& entry) { return entry.first == unknown; });
  require<ModelError>(found != vocabulary.end(), "tokenizer",
                      "expected '{}' in the vocabulary, got a vocabulary without it", unknown);
  return std::make_unique<WordPieceModel>(vocabulary, prefix, found->second,
                                          json.at("max_input_chars_per_word").as_int());
}

std::unique_ptr<const TokenModel> make_model(const Json& json, const Vocabulary& vocabulary,
                                             bool byte_level) {
  // Files of the first versions leave the type out.
  const Json* given = json.find("type");
  const std::string type = given != nullptr          ? given->as_string()
                           : json.contains("merges") ? "BPE"
                                                     : "WordPiece";
  if (type == "BPE") return make_bpe(json, vocabulary, byte_level);
  if (type == "WordPiece") return make_word_piece(json, vocabulary);
  fail<UnsupportedError>("tokenizer", "expected a BPE or WordPiece model, got '{}'", type);
}

Vocabulary parse_vocabulary(const Json& json) {
  // Holes are rare and short; a table by id must not cost more than the file is worth.
  const std::int64_t limit = static_cast<std::int64_t>(json.as_object().size()) + 100000;
  Vocabulary vocabulary;
  vocabulary.reserve(json.size());
  std::vector<bool> used;
  for (const auto& [token, value] : json.as_object()) {
    const std::int64_t id = value.as_int();
    require<ModelError>(id >= 0 && id < limit, "tokenizer",
                        "expected ids from 0 to {}, got {} for '{}'", limit - 1, id, token);
    if (used.size() <= static_cast<std::size_t>(id)) used.resize(static_cast<std::size_t>(id) + 1);
    require<ModelError>(!used[static_cast<std::size_t>(id)], "tokenizer",
                        "expected each id once, got {} twice", id);
    used[static_cast<std::size_t>(id)] = true;
    vocabulary.emplace_back(token, static_cast<std::int32_t>(id));
  }
  return vocabulary;
}

}  // namespace qkv::inline v0::text
