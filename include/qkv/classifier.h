// A trained text classifier, from the folder that training leaves.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "qkv/version.h"

namespace qkv::inline v0 {

struct Prediction {
  std::string label;           // of the largest score; the first one of equals
  double score = 0;            // its probability
  std::vector<double> scores;  // of all labels, in the order of Classifier::labels()
};

// Immutable; thread-safe; copies share the model.
class QKV_API Classifier {
 public:
  // A folder in Hugging Face layout: config.json, model.safetensors, tokenizer.json. ArgumentError
  // if there is none; ModelError for files that are damaged or do not fit together.
  static Classifier load(const std::filesystem::path& folder);

  const std::vector<std::string>& labels() const;

  // One prediction for each text, in order. DataError naming the text (from 1) that is empty, not
  // UTF-8, or longer than the model takes; with `truncate` a longer one is cut. Softmax in double.
  std::vector<Prediction> classify(std::span<const std::string> texts, bool truncate = false) const;

 private:
  struct Impl;
  explicit Classifier(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<const Impl> impl_;
};

}  // namespace qkv::inline v0
