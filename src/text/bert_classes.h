// Character classes as BERT's tokenizers know them.
#pragma once

namespace qkv::inline v0::text {

// The implementations that made the models' ids use the tables of Unicode 8: what later versions
// added or moved has no class there. ASCII symbols all count as punctuation.
bool is_bert_punctuation(char32_t c);
bool is_bert_accent(char32_t c);   // \p{Mn}: what stripping accents removes
bool is_bert_control(char32_t c);  // \p{Cc} \p{Cf} \p{Co}: what cleaning removes

}  // namespace qkv::inline v0::text
