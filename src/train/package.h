// A trained classifier as a folder holds it: model, tokenizer, and how texts were taken in
// training.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "qkv/tokenizer.h"

#include "models/encoder_classifier.h"
#include "text/dataset.h"
#include "train/run_folder.h"

namespace qkv::inline v0::train {

struct ClassifierPackage {
  EncoderClassifier model;
  Tokenizer tokenizer;
  RunFacts
      facts;  // without run.json: columns "text" and "label", limit max_positions, no truncation
};

// ArgumentError if there is no such folder; ModelError for files that do not fit together, and for
// weights that are not finite.
ClassifierPackage load_classifier(const std::filesystem::path& folder);

struct ClassifiedTexts {
  std::vector<std::vector<double>> scores;  // of all labels, for each text
  std::int64_t truncated = 0;               // texts that were cut
};

// Probabilities of all labels for each row's text. DataError "SOURCE:LINE: ..." for a text that is
// empty, not UTF-8, or too long (with `truncate`, or where training cut, it is cut).
ClassifiedTexts classify_texts(const ClassifierPackage& package, const std::vector<TextRow>& rows,
                               bool truncate, const std::string& source);

}  // namespace qkv::inline v0::train
