// The training configuration: every key of docs/configuration.md, checked as a whole before
// anything starts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "qkv/tokenizer.h"

#include "base/json.h"
#include "models/config.h"
#include "train/schedule.h"

namespace qkv::inline v0::train {

inline constexpr double kKeepDropout = -1;  // with ModelSection::from: the rate of that model

struct ModelSection {
  std::filesystem::path from;           // empty: a new model of this shape
  std::optional<ops::Pooling> pooling;  // with `from`: of the new head of a published encoder
  EncoderConfig shape;  // labels and, unless given, vocab_size are filled in from the data
};

struct TokenizerSection {
  std::filesystem::path from;  // empty: learn one from the training texts
  TokenizerOptions options;
};

struct DataSection {
  std::filesystem::path train, validation, test;  // validation and test may be empty
  std::string text = "text", label = "label";
  double validation_share = 0.1;  // by hash of the text; used when validation is empty
  std::int64_t max_length = 0;    // in tokens, specials included; 0: the model's max_positions
  bool truncate = false;
};

enum class OptimizerKind { kAdamW, kSgd };
enum class ClipNorm { kL2, kMax };

struct TrainSection {
  std::int64_t steps = 0, epochs = 10;  // steps win when > 0
  std::int64_t batch_tokens = 2048, accumulate = 1;
  double learning_rate = 1e-3, min_learning_rate = 0;
  double head_learning_rate = 0;   // peak for the classifier's head; 0: learning_rate
  std::int64_t warmup_steps = -1;  // -1: warmup_ratio of all steps
  double warmup_ratio = 0.1;
  ScheduleKind schedule = ScheduleKind::kCosine;
  std::int64_t step_size = 1000;
  double step_gamma = 0.1;
  OptimizerKind optimizer = OptimizerKind::kAdamW;
  double weight_decay = 0.01, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, momentum = 0;
  double clip_norm = 1.0;  // 0: off
  ClipNorm clip_norm_type = ClipNorm::kL2;
  double label_smoothing = 0;
  double token_dropout = 0;                // share of tokens that a step does not see
  std::vector<std::string> freeze, train;  // patterns with * and ? over parameter names
  std::int64_t seed = 0;
  std::int64_t log_every = 1;
  std::int64_t eval_every = 0,
               save_every = 0;  // in steps; 0: after each epoch, and whenever it was evaluated
  std::int64_t early_stop = 0;  // evaluations without a better one; 0: off
};

struct TrainConfig {
  std::string task = "classify";
  ModelSection model;
  TokenizerSection tokenizer;
  DataSection data;
  TrainSection train;

  // Everything that decides the bits of a run, in a fixed order and with full paths.
  Json to_json() const;
};

// `overrides` are "section.key=value", applied in order. ConfigError that lists all faults at once.
TrainConfig read_train_config(const std::filesystem::path& file,
                              std::span<const std::string> overrides = {});
// `folder`: what relative paths are relative to. `name` stands in messages.
TrainConfig parse_train_config(std::string_view toml, const std::filesystem::path& folder,
                               std::span<const std::string> overrides = {},
                               const std::string& name = "config");

}  // namespace qkv::inline v0::train
