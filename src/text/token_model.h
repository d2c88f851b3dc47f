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

// The "vocab" object of a model. ModelError for ids that repeat or leave holes large enough to
// waste memory.
Vocabulary parse_vocabulary(const Json& json);

// From the "model" of a tokenizer.json: BPE (byte-level when `byte_level`: words are bytes and the
// vocabulary writes them as visible characters), WordPiece. UnsupportedError names any other type
// or option.
std::unique_ptr<const TokenModel> make_model(const Json& json, const Vocabulary& vocabulary,
                                             bool byte_level);
std::unique_ptr<const TokenModel> make_bpe(const Json& json, const Vocabulary& vocabulary,
                                           bool byte_level);
std::unique_ptr<const TokenModel> make_word_piece(const Json& json, const Vocabulary& vocabulary);

// GPT-2's visible character for each byte: itself for printable Latin-1, the others U+0100 and on,
// in order.
char32_t visible_byte(unsigned char byte);
std::string to_visible(std::string_view bytes);
// The bytes behind a text of visible characters; false if it holds any other character.
bool from_visible(std::string_view visible, std::string& bytes);

}  // namespace qkv::inline v0::text
