// Tables of texts and labels, and batches of token ids.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "qkv/layout.h"

namespace qkv::inline v0 {

struct TextRow {
  std::string text;
  std::string label;      // empty when there is no label column
  std::int64_t line = 0;  // where the record starts in the file, from 1
};

struct TableOptions {
  std::string text = "text",
              label =
                  "label";  // column names (.csv, .tsv, .jsonl); .txt has one text a line, no label
  bool need_label = true;
  bool allow_empty_text = false;
};

// Whether UTF-8 text holds white space alone (the property of Unicode: U+3000 too) or nothing.
bool is_blank(std::string_view text);

// Reads by extension: .csv (RFC 4180, quoted fields may span lines), .tsv, .jsonl, .txt. UTF-8 with
// or without BOM, LF or CRLF. DataError "[data] FILE:LINE: ..." for an empty file, missing column
// (the ones present are named), ragged row, unterminated quote, invalid UTF-8, empty text or label.
std::vector<TextRow> read_table(const std::filesystem::path& path, const TableOptions& options);

// The same for bytes in memory; `name` gives the extension and stands in messages.
std::vector<TextRow> parse_table(std::string_view bytes, const std::filesystem::path& name,
                                 const TableOptions& options);

struct Sample {
  std::vector<std::int32_t> ids;
  std::int32_t label = -1;
  std::int64_t index = 0;  // in the data set: the random key of dropout
};

struct TokenBatch {
  RaggedLayout layout;               // layout.samples holds the samples' indices
  std::vector<std::int32_t> ids;     // T
  std::vector<std::int32_t> labels;  // B
};

TokenBatch make_batch(const std::vector<const Sample*>& samples);

struct BatchOptions {
  std::int64_t batch_tokens =
      2048;  // at most, counted as the longest length times the number of sequences if padded_count
  bool padded_count = false;
  std::uint64_t seed = 0;
  bool shuffle = true;
};

// Splits an epoch into batches: shuffled by (seed, epoch), sorted by length inside pools of some 50
// batches so that batches hold texts of similar length, then the batches are shuffled. Every sample
// exactly once. A sample longer than batch_tokens gets a batch of its own. Deterministic. Returns
// indices into `lengths`.
std::vector<std::vector<std::int64_t>> plan_batches(const std::vector<std::int64_t>& lengths,
                                                    std::int64_t epoch,
                                                    const BatchOptions& options);

}  // namespace qkv::inline v0
