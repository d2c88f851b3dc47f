// From a configuration to everything a training loop holds: folder, data, model.
#pragma once

#include <filesystem>
#include <memory>

#include "models/encoder_classifier.h"
#include "train/config.h"
#include "train/data.h"
#include "train/optimizer.h"
#include "train/run_folder.h"

namespace qkv::inline v0::train {

struct BuiltRun {
  std::unique_ptr<RunFolder> folder;
  TrainData data;
  EncoderClassifier model;
};

// In this order: the folder is claimed, data are read, the model is made (or taken from model.from;
// its head is kept if the labels are the same) and the tokenizer saved beside it.
BuiltRun build_run(const TrainConfig& config, const std::filesystem::path& folder, bool resume);

OptimizerOptions optimizer_options(const TrainSection& train);
Schedule schedule_of(const TrainSection& train, std::int64_t total_steps);

}  // namespace qkv::inline v0::train
