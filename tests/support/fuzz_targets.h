// What is fuzzed: each target takes arbitrary bytes, feeds a parser and checks what must hold of
// anything it accepts. A typed error is a fine answer; a crash, an InternalError or a broken
// promise (std::logic_error) is not.
#pragma once

#include <span>
#include <string_view>

namespace qkv::testing {

void fuzz_json(std::string_view bytes);
void fuzz_utf8(std::string_view bytes);
void fuzz_table(std::string_view bytes);  // first byte: kind of file and options
void fuzz_safetensors(std::string_view bytes);
void fuzz_gguf(std::string_view bytes);
void fuzz_llama2c(std::string_view bytes);
void fuzz_index(std::string_view bytes);  // model.safetensors.index.json of a folder with one shard
void fuzz_tokenizer(std::string_view bytes);  // tokenizer.json, a NUL, a text
void fuzz_encode(std::string_view bytes);     // a text, for one trained tokenizer of each kind
void fuzz_sentence_piece(std::string_view bytes);
void fuzz_vocabulary(std::string_view bytes);  // llama2.c's tokenizer.bin

struct FuzzTarget {
  const char* name;  // also the folder of its corpus
  void (*run)(std::string_view bytes);
};
std::span<const FuzzTarget> fuzz_targets();

}  // namespace qkv::testing
