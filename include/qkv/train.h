// Training of a text classifier from a configuration file to a folder that Classifier::load reads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "qkv/version.h"

namespace qkv::inline v0::train {

struct Progress {
  std::int64_t step = 0, total_steps = 0;
  double epoch = 0, loss = 0, tokens_per_second = 0;
  double seconds_left = 0;
};

// What the surroundings may plug in; all may be empty. Called from the training thread.
struct TrainHooks {
  std::function<void(const Progress&)> progress;  // after every step
  std::function<bool(std::int64_t step)> stop;    // true: save and leave; asked after every step
  std::function<double()> peak_flops;  // measured peak of the machine; asked once, for peak_share
};

struct TrainOutcome {
  bool interrupted = false;  // hooks.stop said so; --resume continues
  std::int64_t step = 0, best_step = 0, epochs = 0;
  double loss = 0;  // of the last step
  // "accuracy": of the best model on the validation texts, or without any on the test texts; with
  // neither "train_accuracy": the share of right answers in the last whole epoch, with dropout on.
  std::string metric;
  double value = 0;
  std::optional<double> test_accuracy, test_macro_f1;  // of the best model, with data.test
  double seconds = 0;                                  // whole run, resumed parts included
  double tokens_per_second = 0;                        // real tokens, inside training steps
  std::int64_t peak_bytes = 0;                         // most resident memory of this process
};

struct TrainOptions {
  std::vector<std::string> overrides;  // "section.key=value", over the file, in order
  bool resume = false;  // from the newest checkpoint of the folder, or over from the start if none
  TrainHooks hooks;
};

// Bits of the result depend on configuration, data, instruction set and library versions only: not
// on the number of threads, nor on being stopped and resumed. ConfigError (all faults at once),
// ArgumentError (the folder), DataError, ModelError, IoError; NumericError names the first value
// that is not finite (module, forward or backward, step, sample), and weights and optimiser stay as
// they were before that step.
QKV_API TrainOutcome train_classifier(const std::filesystem::path& config,
                                      const std::filesystem::path& folder,
                                      const TrainOptions& options = {});

}  // namespace qkv::inline v0::train
