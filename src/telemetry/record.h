// The records of a training run: plain data, one JSON object a line in metrics.jsonl.
//
// Keys and units: docs/training.md. Every record has `step`, `kind` and `time` (seconds since
// 1970).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"

namespace qkv::inline v0::telemetry {

// Mean, standard deviation and range of the gains of a norm.
struct GammaStats {
  double mean = 0, std = 0, min = 0, max = 0;
};
GammaStats gamma_stats(const float* gamma, std::int64_t n);  // all zero for n = 0

struct LayerRecord {
  std::string name;      // a parameter group: "encoder.layers.0"
  double grad_norm = 0;  // of the averaged gradient, before clipping
  double weight_norm = 0;
  std::vector<std::pair<std::string, GammaStats>> norms;  // by parameter name within the group
};

struct TrainRecord {
  std::int64_t step = 0;
  double time = 0;
  double epoch = 0;  // passes over the training data so far
  double loss = 0;   // mean over the counted targets since the last record
  double learning_rate = 0, grad_norm = 0;
  double clip_scale = 1;    // what clipping multiplied the gradient by
  std::int64_t tokens = 0;  // since the last record
  double tokens_per_second = 0;
  double cpu_share = 0;              // CPU time / (wall time * threads)
  std::optional<double> peak_share;  // arithmetic of the model / measured peak of the machine
  std::int64_t bytes = 0;            // resident memory
  std::vector<LayerRecord> layers;
  Json to_json() const;
};

struct EvalRecord {
  std::int64_t step = 0;
  double time = 0;
  std::string split;  // "validation" or "test"
  double loss = 0, accuracy = 0, macro_f1 = 0;
  std::int64_t n = 0;
  bool best = false;
  Json to_json() const;
};

struct EventRecord {
  std::int64_t step = 0;
  double time = 0;
  std::string event, message;  // "start", "resume", "stop", "early_stop", "end"
  Json to_json() const;
};

}  // namespace qkv::inline v0::telemetry
