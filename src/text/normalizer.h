// The first step of a tokenizer: changes the text (lower case, accents, control characters).
#pragma once

#include <memory>
#include <string>

#include "base/json.h"
#include "text/aligned_text.h"

namespace qkv::inline v0::text {

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  virtual AlignedText apply(const AlignedText& text) const = 0;
};

// From the "normalizer" of a tokenizer.json: BertNormalizer, ByteLevel, Lowercase, NFC, NFD, NFKC,
// NFKD, Nmt, Precompiled, Prepend, Replace, Sequence, Strip, StripAccents; null gives a null
// pointer. UnsupportedError names any other type.
std::unique_ptr<const Normalizer> make_normalizer(const Json& json);
// Those among them that are neither BERT's nor a sequence; a null pointer for any other type.
std::unique_ptr<const Normalizer> make_plain_normalizer(const std::string& type, const Json& json);

// The normaliser of BERT. Order: control characters are removed and blanks made spaces, Chinese
// characters get spaces around them, accents are removed, letters are lowered. Source:
// google-research/bert tokenization.py; the ranges and the order are those of Hugging Face's
// tokenizers.
struct BertNormalizerOptions {
  bool clean_text = true, handle_chinese_chars = true, strip_accents = true, lowercase = true;
};
Json bert_normalizer_json(const BertNormalizerOptions& options);

}  // namespace qkv::inline v0::text
