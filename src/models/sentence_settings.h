// What the files of sentence-transformers say about turning hidden states into one vector per text.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ops/pooling.h"

namespace qkv::inline v0 {

struct SentenceSettings {
  ops::Pooling pooling = ops::Pooling::kMean;
  bool normalize = true;                                     // to length 1
  std::optional<std::int64_t> max_length;                    // tokens, special ones included
  std::vector<std::pair<std::string, std::string>> prompts;  // by name, put in front of the text
  std::string default_prompt;                                // a name, or empty

  // The prompt of that name; ArgumentError naming the known ones.
  const std::string& prompt(const std::string& name) const;
};

// Reads modules.json, the Pooling module's config.json, sentence_bert_config.json and
// config_sentence_transformers.json, as far as they are there. Without modules.json: mean pooling,
// normalised, no limit. ModelError for a module, a pooling or a combination that is not known.
SentenceSettings read_sentence_settings(const std::filesystem::path& folder);

}  // namespace qkv::inline v0
