// Training in turns of a few steps: so that another program can take its turns in between, and the
// two be compared.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "train/build.h"
#include "train/config.h"

namespace qkv::inline v0::bench {

struct Turn {
  std::int64_t steps = 0, tokens = 0;
  double seconds = 0;  // inside the steps
  double flops = 0;
  std::vector<double> losses;  // mean of each step's batch, before its update
};

// The steps of train::train_classifier, without its records and checkpoints. Not thread-safe.
class TrainSession {
 public:
  // Takes the data and the model of a run.
  TrainSession(train::BuiltRun run, const train::TrainConfig& config);
  ~TrainSession();
  TrainSession(TrainSession&&) noexcept;
  TrainSession& operator=(TrainSession&&) noexcept;

  // A model of the examples' shape on random texts with lengths like those of intent data: the same
  // on every machine.
  static TrainSession synthetic(std::uint64_t seed);

  Turn run(std::int64_t steps);
  double accuracy() const;  // on the test texts; DataError without any
  const EncoderClassifier& model() const;
  std::vector<std::int64_t> batch_lengths(
      std::int64_t batch) const;  // of the texts of one batch of the plan

  // What bench/peers/train_classifier_torch.py reads:
  //   data.safetensors  {train,test}.{ids,starts,labels}; plan.samples and plan.starts: the members
  //   of each step's batch, in
  //                     order; sizes: [vocabulary, labels]
  //   initial/          the model before its first step
  //   recipe.json       rates, dropout, steps of warm-up and in all
  void export_to(const std::filesystem::path& folder) const;

 private:
  struct Impl;
  explicit TrainSession(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Reads turns from stdin-like lines ("50": so many steps; "accuracy") through `next_line` and
// answers each by one JSON object through `answer`, as the peer does. Returns when there are no
// more lines.
void serve_turns(TrainSession& session, const std::function<bool(std::string&)>& next_line,
                 const std::function<void(const Json&)>& answer);

}  // namespace qkv::inline v0::bench
