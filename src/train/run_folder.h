// The output folder of a run: run.json says what it was trained on and how; one process at a time
// writes there.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "base/json.h"
#include "train/data.h"

namespace qkv::inline v0::train {

inline constexpr const char* kRunFile = "run.json";
inline constexpr const char* kCheckpointFolder = "checkpoints";

// What other verbs need to use the model as it was trained, and what --resume compares.
struct RunFacts {
  std::string task = "classify";
  std::string text = "text", label = "label";  // column names
  TextLimits limits;
  Json configuration;  // TrainConfig::to_json()
  Json to_json() const;
};
// Nothing where the folder has no run.json. ModelError for one that cannot be understood or is of a
// newer version.
std::optional<RunFacts> read_run_facts(const std::filesystem::path& folder);

// Keys that say where files lie and how often things are written: they do not decide the bits of a
// run.
Json comparable_configuration(Json configuration);

// Holds the folder while it lives. A folder that it made and that stays empty goes away with it.
class RunFolder {
 public:
  // Creates the folder or takes an empty one; with `resume` also one of the same configuration.
  // ArgumentError for a folder that holds anything else, or that another process is writing to.
  RunFolder(std::filesystem::path folder, const RunFacts& facts, bool resume);
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;
  // Writes run.json, unless it stands there: from now on the folder is that of this run.
  void begin(const RunFacts& facts) const;
  const std::filesystem::path& path() const { return folder_; }
  std::filesystem::path checkpoints() const { return folder_ / kCheckpointFolder; }

 private:
  void check(const RunFacts& facts, bool resume) const;
  void remove_leftovers() const;
  std::filesystem::path folder_;
  bool made_ = false;
  int lock_ = -1;
};

}  // namespace qkv::inline v0::train
