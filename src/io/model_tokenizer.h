// The tokenizer of a model, whichever files hold it.
#pragma once

#include <filesystem>

#include "qkv/tokenizer.h"

namespace qkv::inline v0::io {

// - a folder, a tokenizer.json or a SentencePiece .model: as Tokenizer::load;
// - a folder of the Hugging Face cache: its snapshot `main`;
// - a .gguf file: the vocabulary inside it;
// - a .bin file of llama2.c: the vocabulary beside it, tokenizer.bin or the one tok*.bin (or such a
//   vocabulary itself).
// ModelError if there is none; else the errors of the readers.
Tokenizer load_tokenizer(const std::filesystem::path& model);

}  // namespace qkv::inline v0::io
