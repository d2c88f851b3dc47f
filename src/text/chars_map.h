// SentencePiece's compiled table of replacements ("precompiled_charsmap"): a double-array trie of
// texts to replace, and a block of what replaces them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/aligned_text.h"

namespace qkv::inline v0::text {

class CharsMap {
 public:
  CharsMap() = default;  // replaces nothing
  // ModelError for a table that is not well-formed. An empty blob is an empty table.
  explicit CharsMap(std::string_view blob);

  struct Match {
    std::string_view replacement;
    std::size_t size = 0;  // bytes of the text that it stands for
  };
  // What replaces the shortest (or longest) beginning of `text` that the table holds.
  std::optional<Match> shortest(std::string_view text) const;
  std::optional<Match> longest(std::string_view text) const;

  // As the "Precompiled" normaliser of Hugging Face's tokenizers does it: grapheme by grapheme
  // below six bytes, else character by character, by the shortest entry.
  AlignedText apply(const AlignedText& text) const;

 private:
  std::optional<Match> find(std::string_view text, bool longest) const;

  std::vector<std::uint32_t> units_;
  std::string replacements_;  // each ends with a NUL
};

// ModelError for what is not base64.
std::string decode_base64(std::string_view text);

}  // namespace qkv::inline v0::text
