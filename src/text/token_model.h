// The third step of a tokenizer: the pieces of a word.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "text/aligned_text.h"

namespace qkv::inline v0::text {

struct Piece {
  std::int32_t id = 0;
  Span span;  // bytes of the word
};

class TokenModel {
 public:
  virtual ~TokenModel() = default;
  // Appends the pieces of a word, in order.
  virtual void tokenize(std::string_view word, std::vector<Piece>& pieces) const = 0;
};

// Token and id, in the order of the file; ids are >= 0 and used once.
using Vocabulary = std::vector<std::pair<std::string, std::int32_t>>;

// The "vocab" of a model: an object of ids, or an array of [token, score]. ModelError for ids that
// repeat or leave holes large enough to waste memory.
Vocabulary parse_vocabulary(const Json& json);

// From the "model" of a tokenizer.json: BPE (byte-level when `byte_level`: words are bytes and the
// vocabulary writes them as visible characters), Unigram, WordLevel, WordPiece. UnsupportedError
// names any other type or option.
std::unique_ptr<const TokenModel> make_model(const Json& json, const Vocabulary& vocabulary,
                                             bool byte_level);
std::unique_ptr<const TokenModel> make_bpe(const Json& json, const Vocabulary& vocabulary,
                                           bool byte_level);
std::unique_ptr<const TokenModel> make_word_piece(const Json& json, const Vocabulary& vocabulary);
std::unique_ptr<const TokenModel> make_unigram(const Json& json, const Vocabulary& vocabulary);
std::string model_type(const Json& json);
// True if words of this BPE model may be plain bytes: it has no option that looks at characters.
bool takes_plain_bytes(const Json& json);

// Byte-pair encoding by a list of merges, best first.
struct BpeOptions {
  bool byte_level = false;
  bool byte_fallback = false;  // an unknown character becomes its bytes' tokens "<0x41>"
  bool fuse_unknown = false;   // unknown characters in a row become one token
  bool ignore_merges = false;  // a word of the vocabulary is one token whatever the merges say
  std::string prefix, suffix;  // of characters inside a word; of the last character
  std::string unknown;         // empty: unknown characters are left out
};
using MergeList = std::vector<std::pair<std::string_view, std::string_view>>;
std::unique_ptr<const TokenModel> make_bpe(const Vocabulary& vocabulary, const MergeList& merges,
                                           const BpeOptions& options);

// SentencePiece's two models over a whole text, pieces by score. `types` as PieceType of
// embedded_vocabulary.h, one a piece; only normal, user-defined and unused ones are found.
struct ScoredPieces {
  std::vector<std::string> pieces;  // by id
  std::vector<float> scores;
  std::vector<std::int32_t> types;
  std::int32_t unknown = 0;
  bool byte_fallback = false;
};
std::unique_ptr<const TokenModel> make_scored_bpe(ScoredPieces pieces);
std::unique_ptr<const TokenModel> make_scored_unigram(const ScoredPieces& pieces);

// GPT-2's visible character for each byte: itself for printable Latin-1, the others U+0100 and on,
// in order.
char32_t visible_byte(unsigned char byte);
std::string to_visible(std::string_view bytes);
AlignedText visible_text(const AlignedText& text);
// The bytes behind a text of visible characters; false if it holds any other character.
bool from_visible(std::string_view visible, std::string& bytes);

}  // namespace qkv::inline v0::text
