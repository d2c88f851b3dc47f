// Checkpoints: everything that the next step depends on, as a folder written aside and renamed.
//
//   checkpoints/step-000000123/  weights.safetensors    parameters by name
//                                optimizer.safetensors  the optimiser's state
//                                state.json             counters, best so far, hashes, fingerprint,
//                                log positions
//
// A process may be killed at any moment: a folder under its final name is whole.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "base/json.h"
#include "nn/module.h"
#include "telemetry/run_log.h"
#include "train/optimizer.h"

namespace qkv::inline v0::train {

// Sums since the last record.
struct Window {
  double loss_sum = 0;
  std::int64_t counted = 0, tokens = 0;
};

struct BestModel {
  std::int64_t step = 0;  // 0: none yet
  double accuracy = 0, loss = 0;
};

struct TrainState {
  std::int64_t step = 0;                  // updates done
  std::int64_t epoch = 0, batch = 0;      // the next batch is number `batch` of this epoch's plan
  std::int64_t tokens = 0;                // trained on so far
  double seconds = 0, train_seconds = 0;  // whole run; inside steps only
  double loss = 0;                        // of the last step
  Window window;
  std::int64_t epoch_right = 0, epoch_counted = 0;  // answers in the running epoch, with dropout on
  double train_accuracy = 0;                        // of the last whole epoch
  BestModel best;
  std::int64_t evaluations_without_better = 0;
  bool finished = false;
};

struct Checkpoint {
  TrainState state;
  telemetry::RunLogPosition log;
  std::string data_hash;
  std::string order_hash;  // of the running epoch's batches
  Json fingerprint;        // what the bits of a run depend on besides its input
};

// Instruction set, versions of this library and of the compiler.
Json machine_fingerprint();

// Writes it and removes all but the newest two. IoError leaves the earlier ones as they are.
void save_checkpoint(const std::filesystem::path& folder, const nn::Module& module,
                     const Optimizer& optimizer, const Checkpoint& checkpoint);

// The newest whole checkpoint; damaged ones are passed over with a warning. Nothing if there is
// none.
std::optional<std::filesystem::path> latest_checkpoint(const std::filesystem::path& folder);

// Fills module and optimiser. ModelError for a newer format or what does not fit the model.
Checkpoint load_checkpoint(const std::filesystem::path& path, nn::Module& module,
                           Optimizer& optimizer);

}  // namespace qkv::inline v0::train
