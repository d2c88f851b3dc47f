// The second step of a tokenizer: cuts the text into words, inside which the model looks for
// pieces.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "text/aligned_text.h"

namespace qkv::inline v0::text {

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  // Appends the words of `text`, in order, to `words`; may add to the text first (a leading space).
  virtual void split(AlignedText& text, std::vector<Span>& words) const = 0;
};

// From the "pre_tokenizer" of a tokenizer.json: ByteLevel, BertPreTokenizer; null gives a null
// pointer (the text is one word). UnsupportedError names any other type. ByteLevel gives words of
// plain bytes: the mapping of bytes to visible characters is the business of the model's
// vocabulary.
std::unique_ptr<const PreTokenizer> make_pre_tokenizer(const Json& json);

// GPT-2's words: contractions, letters, digits or other characters with one space before them, runs
// of blanks (the last blank of a run is left to the next word if it is a space). The same as the
// pattern
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// Source: openai/gpt-2 src/encoder.py.
void split_gpt2(std::string_view text, std::vector<Span>& words);

// BERT's words: blanks part them, every punctuation character is a word (all ASCII symbols are
// punctuation).
void split_bert(std::string_view text, std::vector<Span>& words);

}  // namespace qkv::inline v0::text
