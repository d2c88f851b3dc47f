#include "telemetry/run_log.h"

#include <vector>

#include "telemetry/process.h"

namespace qkv::inline v0::telemetry {

RunLog::RunLog(const std::filesystem::path& folder, const RunLogPosition& from)
    : metrics_(folder / kMetricsFile, from.metrics),
      events_(folder / kEventsFile, from.events, unix_time()) {}

void RunLog::write(const TrainRecord& record) {
  metrics_.append(record.to_json().dump() + "\n");
  std::vector<std::string> tags;
  std::vector<double> values;
  const auto add = [&](std::string tag, double value) {
    tags.push_back(std::move(tag));
    values.push_back(value);
  };
  add("train/loss", record.loss);
  add("train/learning_rate", record.learning_rate);
  add("train/grad_norm", record.grad_norm);
  add("speed/tokens_per_second", record.tokens_per_second);
  add("speed/cpu_share", record.cpu_share);
  if (record.peak_share) add("speed/peak_share", *record.peak_share);
  add("memory/bytes", static_cast<double>(record.bytes));
  for (const LayerRecord& layer : record.layers) {
    add("grad_norm/" + layer.name, layer.grad_norm);
    for (const auto& [name, stats] : layer.norms) {
      add("gamma_mean/" + layer.name + "." + name, stats.mean);
      add("gamma_std/" + layer.name + "." + name, stats.std);
    }
  }
  std::vector<Scalar> scalars;
  for (std::size_t i = 0; i < tags.size(); ++i) scalars.push_back({tags[i], values[i]});
  events_.add(record.time, record.step, scalars);
}

void RunLog::write(const EvalRecord& record) {
  metrics_.append(record.to_json().dump() + "\n");
  const std::string loss = record.split + "/loss", accuracy = record.split + "/accuracy",
                    macro_f1 = record.split + "/macro_f1";
  const Scalar scalars[] = {
      {loss, record.loss}, {accuracy, record.accuracy}, {macro_f1, record.macro_f1}};
  events_.add(record.time, record.step, scalars);
}

void RunLog::write(const EventRecord& record) { metrics_.append(record.to_json().dump() + "\n"); }

RunLogPosition RunLog::sync() {
  metrics_.sync();
  return {metrics_.size(), events_.size()};
}

}  // namespace qkv::inline v0::telemetry
