// SentencePiece's model files (.model): pieces with scores, and how text is made ready for them.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "text/pipeline.h"

namespace qkv::inline v0::text {

// The fields of the file (sentencepiece_model.proto, ModelProto) that decide ids.
struct SentencePieceModel {
  bool bpe = false;  // else Unigram
  ScoredPieces pieces;
  std::string charsmap;  // of CharsMap
  bool add_dummy_prefix = true, remove_extra_whitespaces = true, escape_whitespaces = true;
  bool whitespace_as_suffix = false;
  std::optional<std::int32_t> bos = 1, eos = 2, padding;  // the file leaves out what is usual
};

// ModelError for what is no such file, or one whose fields do not fit each other; UnsupportedError
// for a model of words or characters. A hostile file costs no more memory than its size explains.
SentencePieceModel parse_sentence_piece(std::string_view bytes);

// Control pieces are special tokens. The normaliser is SentencePiece's own: ids are those of its
// library, where texts hold no special tokens. A dummy prefix comes at the very start of a text
// only.
TokenizerParts parts_of_sentence_piece(SentencePieceModel model, Json post_processor, Json config);

}  // namespace qkv::inline v0::text
