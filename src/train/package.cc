#include "train/package.h"

#include <algorithm>

#include "base/check.h"

namespace qkv::inline v0::train {

ClassifierPackage load_classifier(const std::filesystem::path& folder) {
  std::error_code ignored;
  require<ArgumentError>(std::filesystem::is_directory(folder, ignored), "arguments",
                         "expected the folder of a model, found none at {}", folder.string());
  EncoderClassifier model = EncoderClassifier::load(folder);
  model.module().keep_packed();
  Tokenizer tokenizer = Tokenizer::load(folder);
  const EncoderConfig& shape = model.config();
  require<ModelError>(tokenizer.vocab_size() <= shape.vocab_size, "model",
                      "{}: expected a tokenizer of at most {} pieces, as the embedding has, got {}",
                      folder.string(), shape.vocab_size, tokenizer.vocab_size());
  RunFacts facts;
  facts.limits.max_length = shape.max_positions;
  if (auto found = read_run_facts(folder)) facts = std::move(*found);
  if (const auto limit = shape.position_limit()) {
    facts.limits.max_length = std::min(facts.limits.max_length, *limit);
  }
  return {std::move(model), std::move(tokenizer), std::move(facts)};
}

}  // namespace qkv::inline v0::train
