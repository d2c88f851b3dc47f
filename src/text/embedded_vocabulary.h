// Vocabularies that lie inside a model's own file: GGUF's metadata, llama2.c's tokenizer.bin.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "qkv/tokenizer.h"

namespace qkv::inline v0::text {

// The kinds of `types`, as SentencePiece and GGUF number them.
enum class PieceType : std::int32_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,      // found in a text only where special tokens are parsed; left out by decode
  kUserDefined = 4,  // found in every text before anything else
  kUnused = 5,
  kByte = 6,  // "<0x41>"
};

// The fields of GGUF's "tokenizer.ggml.*", by their names there.
struct EmbeddedVocabulary {
  std::string model;  // "gpt2": byte-level BPE; "llama": SentencePiece BPE by scores; "bert"
  std::string pre;    // "gpt2" only: how words are cut ("llama-bpe", "smollm", "qwen2", ...)
  std::vector<std::string> tokens;  // by id
  std::vector<std::string> merges;  // "gpt2" only: "a b", best first
  std::vector<float> scores;        // "llama" only: one a token
  std::vector<std::int32_t> types;  // PieceType of each token; empty: all normal
  std::optional<std::int32_t> bos, eos, unknown, padding;
  bool add_bos = false, add_eos = false;
  bool add_space_prefix = true;  // "llama" only: a blank goes before the text
};

// Thread-safe. Errors: ModelError for fields that do not fit each other (lengths, ids outside the
// vocabulary, tokens that are not UTF-8), UnsupportedError for a `model` or `pre` that is not
// known, naming those that are.
Tokenizer make_tokenizer(const EmbeddedVocabulary& vocabulary);

// The vocabulary of llama2.c's tokenizer.bin (int32 longest token, then for each token float32
// score, int32 length, bytes; little-endian), `vocab_size` tokens or, with 0, all of the file.
// IoError, ModelError for a file that ends early or holds impossible lengths.
EmbeddedVocabulary read_llama2c_vocabulary(const std::filesystem::path& path,
                                           std::int64_t vocab_size = 0);

}  // namespace qkv::inline v0::text
