// The second step of a tokenizer: cuts the text into words, inside which the model looks for
// pieces.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "text/aligned_text.h"

namespace qkv::inline v0::text {

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  // Cuts the words of `text` into finer ones, in order; at first the text is one word. May change
  // the text (a leading space, other characters for blanks) and leave parts of it out.
  virtual void split(AlignedText& text, std::vector<Span>& words) const = 0;
};

// From the "pre_tokenizer" of a tokenizer.json: BertPreTokenizer, ByteLevel, CharDelimiterSplit,
// Digits, FixedLength, Metaspace, Punctuation, Sequence, Split, UnicodeScripts, Whitespace,
// WhitespaceSplit; null gives a null pointer (the text is one word). UnsupportedError names any
// other type. With `plain_bytes`, words of a ByteLevel that comes last are plain bytes: the mapping
// of bytes to visible characters is then the business of the model's vocabulary.
std::unique_ptr<const PreTokenizer> make_pre_tokenizer(const Json& json, bool plain_bytes);
// Those among them that cut each word on its own; a null pointer for any other type.
std::unique_ptr<const PreTokenizer> make_splitter(const std::string& type, const Json& json);
std::unique_ptr<const PreTokenizer> make_unicode_scripts();
// True if words come out of ByteLevel, be it the last of a sequence.
bool ends_in_byte_level(const Json& json);

// Cuts each word on its own.
class WordSplitter : public PreTokenizer {
 public:
  void split(AlignedText& text, std::vector<Span>& words) const override {
    std::vector<Span> finer;
    finer.reserve(text.text().size() / 4 + 4);
    for (const Span& word : words) {
      const std::size_t first = finer.size();
      cut(text.text().substr(word.begin, word.end - word.begin), finer);
      for (std::size_t i = first; i < finer.size() && word.begin > 0; ++i) {
        finer[i].begin += word.begin;
        finer[i].end += word.begin;
      }
    }
    words.swap(finer);
  }
  // Appends the words of a text that is not empty.
  virtual void cut(std::string_view text, std::vector<Span>& words) const = 0;
};

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
