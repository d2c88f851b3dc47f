// Where the records of a run go: metrics.jsonl and a TensorBoard event file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "telemetry/append_file.h"
#include "telemetry/record.h"
#include "telemetry/tensorboard.h"

namespace qkv::inline v0::telemetry {

// Sizes of both files at some moment: continuing from it cuts what came later.
struct RunLogPosition {
  std::int64_t metrics = 0, events = 0;
};

// Records are handed to the system as they are written. Not thread-safe.
class RunLog {
 public:
  RunLog(const std::filesystem::path& folder, const RunLogPosition& from);
  void write(const TrainRecord& record);
  void write(const EvalRecord& record);
  void write(const EventRecord& record);  // metrics.jsonl only
  // Makes the records durable and says where they end.
  RunLogPosition sync();

 private:
  AppendFile metrics_;
  EventFile events_;
};

inline constexpr const char* kMetricsFile = "metrics.jsonl";
inline constexpr const char* kEventsFile =
    "events.out.tfevents.0.qkv";  // the name TensorBoard looks for

}  // namespace qkv::inline v0::telemetry
