#include "telemetry/record.h"

#include <algorithm>
#include <cmath>

namespace qkv::inline v0::telemetry {
namespace {

Json record(std::int64_t step, const char* kind, double time) {
  Json out = Json::object();
  out["step"] = step;
  out["kind"] = kind;
  out["time"] = time;
  return out;
}

Json layer_json(const LayerRecord& layer) {
  Json out = Json::object();
  out["grad_norm"] = layer.grad_norm;
  out["weight_norm"] = layer.weight_norm;
  if (layer.norms.empty()) return out;
  Json norms = Json::object();
  for (const auto& [name, stats] : layer.norms) {
    Json gamma = Json::object();
    gamma["mean"] = stats.mean;
    gamma["std"] = stats.std;
    gamma["min"] = stats.min;
    gamma["max"] = stats.max;
    norms[name] = std::move(gamma);
  }
  out["gamma"] = std::move(norms);
  return out;
}

}  // namespace

GammaStats gamma_stats(const float* gamma, std::int64_t n) {
  if (n == 0) return {};
  GammaStats stats{0, 0, gamma[0], gamma[0]};
  for (std::int64_t i = 0; i < n; ++i) {
    stats.mean += gamma[i];
    stats.min = std::min<double>(stats.min, gamma[i]);
    stats.max = std::max<double>(stats.max, gamma[i]);
  }
  stats.mean /= static_cast<double>(n);
  double squares = 0;
  for (std::int64_t i = 0; i < n; ++i) squares += (gamma[i] - stats.mean) * (gamma[i] - stats.mean);
  stats.std = std::sqrt(squares / static_cast<double>(n));
  return stats;
}

Json TrainRecord::to_json() const {
  Json out = record(step, "train", time);
  out["epoch"] = epoch;
  out["loss"] = loss;
  out["learning_rate"] = learning_rate;
  out["grad_norm"] = grad_norm;
  out["clip_scale"] = clip_scale;
  out["tokens"] = tokens;
  out["tokens_per_second"] = tokens_per_second;
  out["cpu_share"] = cpu_share;
  out["peak_share"] = peak_share ? Json(*peak_share) : Json();
  out["bytes"] = bytes;
  Json all = Json::object();
  for (const LayerRecord& layer : layers) all[layer.name] = layer_json(layer);
  out["layers"] = std::move(all);
  return out;
}

Json EvalRecord::to_json() const {
  Json out = record(step, "eval", time);
  out["split"] = split;
  out["loss"] = loss;
  out["accuracy"] = accuracy;
  out["macro_f1"] = macro_f1;
  out["n"] = n;
  out["best"] = best;
  return out;
}

Json EventRecord::to_json() const {
  Json out = record(step, "event", time);
  out["event"] = event;
  out["message"] = message;
  return out;
}

}  // namespace qkv::inline v0::telemetry
