// Texts and labels of a configuration as token ids, ready to batch.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "qkv/tokenizer.h"

#include "text/dataset.h"
#include "train/config.h"

namespace qkv::inline v0::train {

// What a text may be: kept with a model, so that it is used as it was trained.
struct TextLimits {
  std::int64_t max_length = 512;  // tokens, specials included
  bool truncate = false;          // false: a longer text is a DataError
};

// Cuts ids, and tokens and offsets where there are any, to `length`; a closing special token is
// kept.
void cut_encoding(Encoding& encoding, std::int64_t length, const Tokenizer& tokenizer);

// Token ids of texts, specials added; encoded in parallel.
struct EncodedTexts {
  std::vector<std::vector<std::int32_t>> ids;
  std::int64_t truncated = 0;  // texts that were cut (their last special token is kept)
};
// DataError naming `source` and the row's line for a text that is longer than the limit allows, or
// that leaves no token, or for a limit that would cut all of a text but its special tokens.
EncodedTexts encode_texts(const std::vector<TextRow>& rows, const Tokenizer& tokenizer,
                          const TextLimits& limits, const std::string& source);

// Distinct labels in byte order. DataError for fewer than two.
std::vector<std::string> label_list(const std::vector<TextRow>& rows, const std::string& source);
// Index of each row's label. DataError naming line and label for one that is not in the list.
std::vector<std::int32_t> label_indices(const std::vector<TextRow>& rows,
                                        const std::vector<std::string>& labels,
                                        const std::string& source);

// Samples 0.. of texts with labels.
std::vector<Sample> make_samples(EncodedTexts encoded, const std::vector<std::int32_t>& labels);

// Takes a share of the rows away by the hash of their text (so equal texts stay together and the
// choice does not depend on order or seed). Rows whose label would vanish from the rest stay.
std::vector<TextRow> split_by_hash(std::vector<TextRow>& rows, double share);

struct TrainData {
  Tokenizer tokenizer;
  std::vector<std::string> labels;
  std::vector<Sample> train, validation, test;
  TextLimits limits;
  std::string hash;  // of the files' bytes
};
// Reads, splits, learns or loads the tokenizer, encodes. DataError, ModelError, IoError.
TrainData load_train_data(const TrainConfig& config, const TextLimits& limits);

// 16 hexadecimal digits.
std::string hex(std::uint64_t value);

}  // namespace qkv::inline v0::train
