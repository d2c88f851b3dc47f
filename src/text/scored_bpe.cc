// SentencePiece's byte-pair encoding: two neighbours merge if their texts together are a piece, the
// best score first, the leftmost of equals (Kudo and Richardson 2018).
#include <array>
#include <map>
#include <queue>

#include "base/check.h"
#include "text/char_trie.h"
#include "text/decoder.h"
#include "text/embedded_vocabulary.h"
#include "text/piece_table.h"
#include "text/token_model.h"
#include "text/unicode.h"

namespace qkv::inline v0::text {
namespace {

class ScoredBpe : public TokenModel {
 public:
  explicit ScoredBpe(ScoredPieces pieces)
      : pieces_(std::move(pieces)), ids_(pieces_.pieces.size()) {
    byte_ids_.fill(-1);
    for (std::size_t i = 0; i < pieces_.pieces.size(); ++i) {
      const std::string& piece = pieces_.pieces[i];
      const auto id = static_cast<std::int32_t>(i);
      if (piece.empty()) continue;
      switch (type_of(id)) {
        case PieceType::kNormal:
        case PieceType::kUnused:
          ids_.insert(piece, id);
          break;
        case PieceType::kUserDefined:
          ids_.insert(piece, id);
          whole_.insert(piece, id);
          break;
        case PieceType::kByte:
          if (const int byte = byte_of_token(piece); byte >= 0)
            byte_ids_[static_cast<std::size_t>(byte)] = id;
          break;
        case PieceType::kUnknown:
        case PieceType::kControl:
          break;
      }
    }
  }

  void tokenize(std::string_view word, std::vector<Piece>& out) const override {
    std::vector<Symbol> symbols = letters(word);
    std::map<std::string_view, std::pair<Span, Span>> undo;  // of pieces that are not to be used
    merge(word, symbols, undo);
    const std::size_t first = out.size();
    for (std::size_t i = 0; i < symbols.size(); i = symbols[i].next) {
      if (symbols[i].span.begin < symbols[i].span.end)
        emit(word, symbols[i].span, undo, first, out);
      if (symbols[i].next == kNone) break;
    }
  }

 private:
  static constexpr std::uint32_t kNone = 0xFFFFFFFFu;
  struct Symbol {
    Span span;  // empty: merged into the one before
    std::uint32_t previous = kNone, next = kNone;
    bool whole = false;  // a user's own piece, which does not merge
  };
  struct Candidate {
    float score;
    std::uint32_t left, right, size;
    bool operator<(const Candidate& other) const {
      return score != other.score ? score < other.score : left > other.left;
    }
  };

  PieceType type_of(std::int32_t id) const {
    return static_cast<PieceType>(pieces_.types[static_cast<std::size_t>(id)]);
  }

  std::vector<Symbol> letters(std::string_view word) const {
    std::vector<Symbol> symbols;
    symbols.reserve(word.size());
    for (std::size_t at = 0; at < word.size();) {
      std::size_t size = 0;
      if (!whole_.empty())
        whole_.prefixes(word.substr(at), [&](std::int32_t, std::size_t n) { size = n; });
      const bool whole = size > 0;
      if (!whole) size = char_length(word[at]);
      const auto index = static_cast<std::uint32_t>(symbols.size());
      const auto begin = static_cast<std::uint32_t>(at);
      symbols.push_back({{begin, static_cast<std::uint32_t>(at + size)},
                         index == 0 ? kNone : index - 1,
                         at + size < word.size() ? index + 1 : kNone,
                         whole});
      at += size;
    }
    return symbols;
  }

  void merge(std::string_view word, std::vector<Symbol>& symbols,
             std::map<std::string_view, std::pair<Span, Span>>& undo) const {
    std::priority_queue<Candidate> queue;
    const auto offer = [&](std::uint32_t left, std::uint32_t right) {
      if (left == kNone || right == kNone || symbols[left].whole || symbols[right].whole) return;
      const Span span{symbols[left].span.begin, symbols[right].span.end};
      const std::string_view text = word.substr(span.begin, span.end - span.begin);
      const std::int32_t id = ids_.find(text);
      if (id < 0) return;
      queue.push(
          {pieces_.scores[static_cast<std::size_t>(id)], left, right, span.end - span.begin});
      if (type_of(id) == PieceType::kUnused)
        undo.emplace(text, std::pair(symbols[left].span, symbols[right].span));
    };
    for (std::uint32_t i = 1; i < symbols.size(); ++i) offer(i - 1, i);
    while (!queue.empty()) {
      const Candidate top = queue.top();
      queue.pop();
      Symbol& left = symbols[top.left];
      Symbol& right = symbols[top.right];
      const bool gone = left.span.begin == left.span.end || right.span.begin == right.span.end;
      if (gone || right.span.end - left.span.begin != top.size) continue;  // changed since
      left.span.end = right.span.end;
      right.span.begin = right.span.end;
      left.next = right.next;
      if (right.next != kNone) symbols[right.next].previous = top.left;
      offer(left.previous, top.left);
      offer(top.left, left.next);
    }
  }

  // Appends the token of `span`: a piece, or the two that an unused one was merged from, or bytes,
  // or the unknown token, once for a run of unknown text.
  void emit(std::string_view word, Span span,
            const std::map<std::string_view, std::pair<Span, Span>>& undo, std::size_t first,
            std::vector<Piece>& out) const {
    const std::string_view text = word.substr(span.begin, span.end - span.begin);
    const std::int32_t id = ids_.find(text);
    if (id >= 0 && type_of(id) == PieceType::kUnused) {
      if (const auto parts = undo.find(text); parts != undo.end()) {
        // The parts were noted where this text came first; here they lie as far from the beginning.
        const std::uint32_t middle =
            span.begin + parts->second.first.end - parts->second.first.begin;
        emit(word, {span.begin, middle}, undo, first, out);
        emit(word, {middle, span.end}, undo, first, out);
        return;
      }
    }
    if (id >= 0) {
      out.push_back({id, span});
      return;
    }
    if (pieces_.byte_fallback && append_bytes(text, span, out)) return;
    if (out.size() > first && out.back().id == pieces_.unknown &&
        out.back().span.end == span.begin) {
      out.back().span.end = span.end;
    } else {
      out.push_back({pieces_.unknown, span});
    }
  }

  bool append_bytes(std::string_view text, Span span, std::vector<Piece>& out) const {
    for (const char c : text) {
      if (byte_ids_[static_cast<unsigned char>(c)] < 0) return false;
    }
    for (const char c : text) out.push_back({byte_ids_[static_cast<unsigned char>(c)], span});
    return true;
  }

  ScoredPieces pieces_;
  PieceTable ids_;
  CharTrie whole_;
  std::array<std::int32_t, 256> byte_ids_{};
};

}  // namespace

std::unique_ptr<const TokenModel> make_scored_bpe(ScoredPieces pieces) {
  return std::make_unique<ScoredBpe>(std::move(pieces));
}

}  // namespace qkv::inline v0::text
