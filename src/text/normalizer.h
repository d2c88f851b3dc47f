// The first step of a tokenizer: changes the text (lower case, accents, control characters).
#pragma once

#include <memory>

#include "base/json.h"
#include "text/aligned_text.h"

namespace qkv::inline v0::text {

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  virtual AlignedText apply(const AlignedText& text) const = 0;
};

// From the "normalizer" of a tokenizer.json: BertNormalizer, Lowercase, Sequence; null gives a null
// pointer. UnsupportedError names any other type.
std::unique_ptr<const Normalizer> make_normalizer(const Json& json);

// The normaliser of BERT. Order: control characters are removed and blanks made spaces, Chinese
// characters get spaces around them, accents are removed, letters are lowered. Source:
// google-research/bert tokenization.py; the ranges and the order are those of Hugging Face's
// tokenizers.
struct BertNormalizerOptions {
  bool clean_text = true, handle_chinese_chars = true, strip_accents = true, lowercase = true;
};
Json bert_normalizer_json(const BertNormalizerOptions& options);

}  // namespace qkv::inline v0::text
