// The training loop behind qkv/train.h, from a configuration that was read.
#pragma once

#include <filesystem>

#include "qkv/train.h"

#include "train/config.h"

namespace qkv::inline v0::train {

// As in qkv/train.h.
TrainOutcome train_classifier(const TrainConfig& config, const std::filesystem::path& folder,
                              bool resume, const TrainHooks& hooks = {});

}  // namespace qkv::inline v0::train
