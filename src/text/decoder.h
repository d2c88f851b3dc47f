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
  // The text of these tokens, each as the vocabulary writes it.
  virtual std::string decode(const std::vector<std::string>& tokens) const = 0;
};

// From the "decoder" of a tokenizer.json: ByteLevel, WordPiece, Fuse; null joins the tokens with
// spaces. UnsupportedError names any other type.
std::unique_ptr<const Decoder> make_decoder(const Json& json);

}  // namespace qkv::inline v0::text
