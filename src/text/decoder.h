// From tokens back to text.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/json.h"

namespace qkv::inline v0::text {

class Decoder {
 public:
  virtual ~Decoder() = default;
  // Changes tokens, each as the vocabulary writes it, into parts of the text, which join to it.
  virtual void decode(std::vector<std::string>& tokens) const = 0;
  // The same, but bytes that are no UTF-8 (yet) stay as they are.
  virtual void decode_bytes(std::vector<std::string>& tokens) const { decode(tokens); }
};

// From the "decoder" of a tokenizer.json: BPEDecoder, ByteFallback, ByteLevel, CTC, Fuse,
// Metaspace, Replace, Sequence, Strip, WordPiece; null puts spaces between the tokens.
// UnsupportedError names any other type.
std::unique_ptr<const Decoder> make_decoder(const Json& json);

// The byte that a token "<0x41>" stands for, or -1.
int byte_of_token(std::string_view token);
std::string token_of_byte(unsigned char byte);

}  // namespace qkv::inline v0::text
