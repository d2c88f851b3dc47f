// Unigram: the segmentation of the greatest sum of scores (Kudo 2018, "Subword regularization"),
// found by Viterbi's algorithm.
#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "text/char_trie.h"
#include "text/decoder.h"
#include "text/embedded_vocabulary.h"
#include "text/json_fields.h"
#include "text/token_model.h"
#include "text/unicode.h"

namespace qkv::inline v0::text {
namespace {

constexpr double kUnknownPenalty = 10;

// The ids of "<0x00>" to "<0xFF>"; -1 where the vocabulary has none.
struct ByteIds {
  std::array<std::int32_t, 256> ids{};
  ByteIds() { ids.fill(-1); }
  void add(std::string_view token, std::int32_t id) {
    if (const int byte = byte_of_token(token); byte >= 0) ids[static_cast<std::size_t>(byte)] = id;
  }
  // Appends the tokens of the bytes of `span`; false, and nothing, if one has none.
  bool append(std::string_view word, Span span, std::vector<Piece>& pieces) const {
    const std::string_view bytes = word.substr(span.begin, span.end - span.begin);
    const bool known = std::all_of(bytes.begin(), bytes.end(),
                                   [&](char c) { return ids[static_cast<unsigned char>(c)] >= 0; });
    if (!known) return false;
    for (const char c : bytes) pieces.push_back({ids[static_cast<unsigned char>(c)], span});
    return true;
  }
};

// `Score` is the type that sums are kept in: double for tokenizer.json, float for SentencePiece's
// own models, as in the implementations that the files come from.
template <class Score>
class Unigram : public TokenModel {
 public:
  // A piece's `scores` by id; a piece that is not in the trie may have any.
  Unigram(CharTrie trie, std::vector<double> scores, double unknown_score, std::int32_t unknown,
          const ByteIds* bytes)
      : trie_(std::move(trie)),
        scores_(std::move(scores)),
        unknown_score_(unknown_score),
        unknown_(unknown),
        byte_fallback_(bytes != nullptr) {
    if (bytes != nullptr) bytes_ = *bytes;
  }

  void tokenize(std::string_view word, std::vector<Piece>& pieces) const override {
    if (word.empty()) return;
    thread_local std::vector<Node> nodes;
    find_best(word, nodes);
    const std::size_t first = pieces.size();
    for (auto end = static_cast<std::uint32_t>(word.size()); end > 0; end = nodes[end].begin) {
      const Node& node = nodes[end];
      const bool joins = node.id < 0 && pieces.size() > first && pieces.back().id < 0;
      if (joins) {
        pieces.back().span.begin = node.begin;
      } else {
        pieces.push_back({node.id, {node.begin, end}});
      }
    }
    std::reverse(pieces.begin() + static_cast<std::ptrdiff_t>(first), pieces.end());
    name_unknown(word, first, pieces);
  }

 private:
  struct Node {  // of a place in the word: the best way to it
    Score score = 0;
    std::uint32_t begin = kNowhere;
    std::int32_t id = -1;
  };
  static constexpr std::uint32_t kNowhere = std::numeric_limits<std::uint32_t>::max();

  void find_best(std::string_view word, std::vector<Node>& nodes) const {
    nodes.assign(word.size() + 1, {});
    for (std::size_t at = 0; at < word.size();) {
      const double here = nodes[at].score;
      const std::size_t length = char_length(word[at]);
      bool single = false;
      const auto offer = [&](std::int32_t id, double score, std::size_t size) {
        Node& node = nodes[at + size];
        const auto total = static_cast<Score>(score + here);
        if (node.begin == kNowhere || total > node.score)
          node = {total, static_cast<std::uint32_t>(at), id};
      };
      trie_.prefixes(word.substr(at), [&](std::int32_t id, std::size_t size) {
        offer(id, scores_[static_cast<std::size_t>(id)], size);
        single = single || size == length;
      });
      if (!single) offer(-1, unknown_score_, length);
      at += length;
    }
  }

  // Runs of unknown characters become bytes or the unknown token.
  void name_unknown(std::string_view word, std::size_t first, std::vector<Piece>& pieces) const {
    const auto begin = pieces.begin() + static_cast<std::ptrdiff_t>(first);
    if (std::none_of(begin, pieces.end(), [](const Piece& p) { return p.id < 0; })) return;
    const std::vector<Piece> found(begin, pieces.end());
    pieces.resize(first);
    for (const Piece& piece : found) {
      if (piece.id >= 0) {
        pieces.push_back(piece);
      } else if (!byte_fallback_ || !bytes_.append(word, piece.span, pieces)) {
        require<DataError>(unknown_ >= 0, "tokenizer",
                           "expected characters of the vocabulary (it has no unknown token), got "
                           "'{}'",
                           word.substr(piece.span.begin, piece.span.end - piece.span.begin));
        pieces.push_back({unknown_, piece.span});
      }
    }
  }

  CharTrie trie_;
  std::vector<double> scores_;
  double unknown_score_;
  std::int32_t unknown_;
  bool byte_fallback_;
  ByteIds bytes_;
};

}  // namespace

std::unique_ptr<const TokenModel> make_unigram(const Json& json, const Vocabulary& vocabulary) {
  const Json::Array& entries = json.at("vocab").as_array();
  const std::int64_t unknown = int_or(json, "unk_id", -1);
  require<ModelError>(unknown < static_cast<std::int64_t>(entries.size()), "tokenizer",
                      "expected an unk_id below {}, got {}", entries.size(), unknown);
  CharTrie trie(vocabulary.size());
  std::vector<double> scores(vocabulary.size());
  ByteIds bytes;
  double least = std::numeric_limits<double>::infinity();
  for (const auto& [token, id] : vocabulary) {
    const auto index = static_cast<std::size_t>(id);
    scores[index] = entries[index].at(1).as_double();
    least = std::min(least, scores[index]);
    bytes.add(token, id);
    if (!token.empty()) trie.insert(token, id);
  }
  const bool fallback = flag_or(json, "byte_fallback", false);
  return std::make_unique<Unigram<double>>(
      std::move(trie), std::move(scores), least - kUnknownPenalty,
      static_cast<std::int32_t>(std::max<std::int64_t>(unknown, -1)), fallback ? &bytes : nullptr);
}

std::unique_ptr<const TokenModel> make_scored_unigram(const ScoredPieces& pieces) {
  CharTrie trie(pieces.pieces.size());
  std::vector<double> scores(pieces.pieces.size());
  ByteIds bytes;
  float least = std::numeric_limits<float>::max(), most = std::numeric_limits<float>::lowest();
  for (std::size_t i = 0; i < scores.size(); ++i) {
    if (static_cast<PieceType>(pieces.types[i]) != PieceType::kNormal) continue;
    least = std::min(least, pieces.scores[i]);
    most = std::max(most, pieces.scores[i]);
  }
  for (std::size_t i = 0; i < scores.size(); ++i) {
    const auto id = static_cast<std::int32_t>(i);
    const auto type = static_cast<PieceType>(pieces.types[i]);
    const std::string& piece = pieces.pieces[i];
    if (type == PieceType::kByte) bytes.add(piece, id);
    if (piece.empty() || (type != PieceType::kNormal && type != PieceType::kUserDefined)) continue;
    // A user's own piece is worth so much that it always wins.
    scores[i] = type == PieceType::kUserDefined ? static_cast<float>(piece.size()) * most - 0.1
                                                : static_cast<double>(pieces.scores[i]);
    trie.insert(piece, id);
  }
  return std::make_unique<Unigram<float>>(
      std::move(trie), std::move(scores),
      static_cast<double>(least - static_cast<float>(kUnknownPenalty)), pieces.unknown,
      pieces.byte_fallback ? &bytes : nullptr);
}

}  // namespace qkv::inline v0::text
