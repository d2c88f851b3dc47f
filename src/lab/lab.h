// The lab: claims about Transformers, each measured again by the engine's own operations.
//
// An experiment is one pure function from options to a result: it draws everything from the seed,
// prints nothing and writes nothing. docs/lab.md says what each one shows. Thread-safe, except that
// flash-memory reads the process-wide peaks of the memory account, and takes one thread for its
// duration.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace qkv::inline v0::lab {

struct Options {
  bool full = false;  // larger grids; the quick form takes under a minute on two cores
  std::uint64_t seed = 1;
  std::filesystem::path data;   // folder of the support requests (broken-attention)
  std::filesystem::path model;  // a trained run folder to start from; empty: train one
};

enum class Holds { kTrue, kFalse, kUndecided };

struct Table {
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;  // each as wide as `columns`
};

struct Picture {
  std::string file;   // "flash-memory.svg"
  std::string bytes;  // complete, no links to elsewhere
};

struct Result {
  Holds holds = Holds::kUndecided;
  std::string verdict;  // one sentence with the deciding figures
  Table table;
  Json measured;  // every figure by name
  std::vector<Picture> pictures;
};

struct Experiment {
  const char* name;   // "score-variance"
  const char* claim;  // the sentence under test
  Result (*run)(const Options& options);
};

// All experiments, in the order of docs/lab.md.
std::span<const Experiment> experiments();
// ArgumentError naming the nearest known one.
const Experiment& find_experiment(std::string_view name);

// {"name", "claim", "holds": true | false | null, "verdict", "measured"}: null is undecided.
Json to_json(const Experiment& experiment, const Result& result);
// Claim, aligned table, and "holds: ..." or "does not hold: ..." with the verdict.
std::string to_text(const Experiment& experiment, const Result& result);

Result run_score_variance(const Options& options);
Result run_scale_gradient(const Options& options);
Result run_mask_zero(const Options& options);
Result run_mask_values(const Options& options);
Result run_fused_equals_manual(const Options& options);
Result run_mask_polarity(const Options& options);
Result run_flash_memory(const Options& options);
Result run_order_blind(const Options& options);
Result run_position_shift(const Options& options);
Result run_broken_attention(const Options& options);

}  // namespace qkv::inline v0::lab
