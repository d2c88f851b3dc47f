// A language model as it is published: weights, tokenizer, and what its files say of texts' ends.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "qkv/tokenizer.h"

#include "infer/language_model.h"
#include "infer/score.h"
#include "infer/text_stream.h"
#include "models/transformer.h"

namespace qkv::inline v0::infer {

struct LanguagePackage {
  std::shared_ptr<const Transformer> transformer;
  std::unique_ptr<LanguageModel> model;
  Tokenizer tokenizer;
};

// A Hugging Face folder, a .gguf file or a llama2.c .bin. The tokenizer comes from the same place
// (io/model_tokenizer.h), or from `tokenizer` if that is not empty. End ids:
// generation_config.json, else config.json. Ids that the tokenizer does not know are never emitted.
// ModelError for files that do not fit, for a model without tokenizer and for one that is no
// decoder with a language model's head.
LanguagePackage load_language_package(const std::filesystem::path& model,
                                      const std::filesystem::path& tokenizer = {});

// What tokens stand for, special ones left out. The tokenizer must live as long.
TokenBytes token_bytes(const Tokenizer& tokenizer);

// The piece as the vocabulary writes it; "" for an id that the tokenizer does not know.
std::string piece_of(const Tokenizer& tokenizer, std::int32_t id);

// Token ids of a context and of what continues it, divided as lm-eval does it: blanks at the end of
// the context belong to the continuation; context + continuation are encoded together and divided
// behind the ids of the context alone, without special tokens. An empty context has no ids.
struct DividedText {
  std::vector<std::int32_t> context, continuation;
};
DividedText divide_text(const Tokenizer& tokenizer, std::string context, std::string continuation);

}  // namespace qkv::inline v0::infer
