#include "train/checkpoint.h"

#include <algorithm>
#include <vector>

#include "qkv/version.h"

#include "base/check.h"
#include "base/cpu.h"
#include "base/file.h"
#include "base/log.h"
#include "io/safetensors.h"

namespace qkv::inline v0::train {
namespace fs = std::filesystem;
namespace {

constexpr std::int64_t kFormatVersion = 1;
constexpr const char* kWeights = "weights.safetensors";
constexpr const char* kOptimizer = "optimizer.safetensors";
constexpr const char* kState = "state.json";
constexpr std::size_t kKept = 2;

Json state_json(const TrainState& s) {
  Json window = Json::object();
  window["loss_sum"] = s.window.loss_sum;
  window["counted"] = s.window.counted;
  window["tokens"] = s.window.tokens;
  Json best = Json::object();
  best["step"] = s.best.step;
  best["accuracy"] = s.best.accuracy;
  best["loss"] = s.best.loss;
  Json out = Json::object();
  out["step"] = s.step;
  out["epoch"] = s.epoch;
  out["batch"] = s.batch;
  out["tokens"] = s.tokens;
  out["seconds"] = s.seconds;
  out["train_seconds"] = s.train_seconds;
  out["loss"] = s.loss;
  out["window"] = std::move(window);
  out["epoch_right"] = s.epoch_right;
  out["epoch_counted"] = s.epoch_counted;
  out["train_accuracy"] = s.train_accuracy;
  out["best"] = std::move(best);
  out["evaluations_without_better"] = s.evaluations_without_better;
  out["finished"] = s.finished;
  return out;
}

TrainState read_state(const Json& json) {
  TrainState s;
  s.step = json.at("step").as_int();
  s.epoch = json.at("epoch").as_int();
  s.batch = json.at("batch").as_int();
  s.tokens = json.at("tokens").as_int();
  s.seconds = json.at("seconds").as_double();
  s.train_seconds = json.at("train_seconds").as_double();
  s.loss = json.at("loss").as_double();
  s.window.loss_sum = json.at("window").at("loss_sum").as_double();
  s.window.counted = json.at("window").at("counted").as_int();
  s.window.tokens = json.at("window").at("tokens").as_int();
  s.epoch_right = json.at("epoch_right").as_int();
  s.epoch_counted = json.at("epoch_counted").as_int();
  s.train_accuracy = json.at("train_accuracy").as_double();
  s.best.step = json.at("best").at("step").as_int();
  s.best.accuracy = json.at("best").at("accuracy").as_double();
  s.best.loss = json.at("best").at("loss").as_double();
  s.evaluations_without_better = json.at("evaluations_without_better").as_int();
  s.finished = json.at("finished").as_bool();
  return s;
}

// Folders step-NNN, newest first.
std::vector<fs::path> checkpoints_in(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored)) return found;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (entry.path().filename().string().rfind("step-", 0) == 0) found.push_back(entry.path());
  }
  std::sort(found.rbegin(), found.rend());
  return found;
}

Json read_state_file(const fs::path& path) {
  const fs::path file = path / kState;
  Json json = Json::parse(read_file(file), file.string());
  const std::int64_t format = json.at("format_version").as_int();
  require<ModelError>(format <= kFormatVersion, "checkpoint",
                      "{} has format version {}; this program knows up to {}: use a newer one",
                      file.string(), format, kFormatVersion);
  return json;
}

}  // namespace

Json machine_fingerprint() {
  Json out = Json::object();
  out["qkv"] = version();
  out["isa"] = isa_name(active_isa());
  out["processor"] = cpu_features().model;
  out["compiler"] = __VERSION__;
  return out;
}

void save_checkpoint(const fs::path& folder, const nn::Module& module, const Optimizer& optimizer,
                     const Checkpoint& checkpoint) {
  const std::string name = fmt::format("step-{:09}", checkpoint.state.step);
  const fs::path aside = folder / (".partial-" + name);
  std::error_code ignored;
  fs::create_directories(folder, ignored);
  fs::remove_all(aside, ignored);
  fs::create_directory(aside, ignored);
  try {
    std::vector<std::pair<std::string, Tensor>> weights;
    module.for_each([&](const nn::Parameter& p) { weights.emplace_back(p.name, p.var.value()); });
    io::save_safetensors(aside / kWeights, weights);
    io::save_safetensors(aside / kOptimizer, optimizer.state());
    Json updates = Json::object();
    for (const auto& [parameter, count] : optimizer.updates()) updates[parameter] = count;
    Json log = Json::object();
    log["metrics"] = checkpoint.log.metrics;
    log["events"] = checkpoint.log.events;
    Json out = Json::object();
    out["format_version"] = kFormatVersion;
    out["state"] = state_json(checkpoint.state);
    out["optimizer_updates"] = std::move(updates);
    out["log"] = std::move(log);
    out["data_hash"] = checkpoint.data_hash;
    out["order_hash"] = checkpoint.order_hash;
    out["fingerprint"] = checkpoint.fingerprint;
    write_file_atomic(aside / kState, out.dump(2) + "\n");
    sync_folder(aside);
    replace_path(aside, folder / name);
  } catch (...) {
    fs::remove_all(aside, ignored);
    throw;
  }
  const std::vector<fs::path> all = checkpoints_in(folder);
  for (std::size_t i = kKept; i < all.size(); ++i) fs::remove_all(all[i], ignored);
}

std::optional<fs::path> latest_checkpoint(const fs::path& folder) {
  for (const fs::path& path : checkpoints_in(folder)) {
    try {
      read_state_file(path);
      io::SafetensorsFile::open(path / kWeights);
      io::SafetensorsFile::open(path / kOptimizer);
      return path;
    } catch (const ModelError& error) {
      if (error.where() == "checkpoint") throw;  // whole, but of a newer format
      log_message(LogLevel::kWarning,
                  fmt::format("passing over the checkpoint {}: {}", path.string(), error.what()));
    } catch (const Error& error) {
      log_message(LogLevel::kWarning,
                  fmt::format("passing over the checkpoint {}: {}", path.string(), error.what()));
    }
  }
  return std::nullopt;
}

Checkpoint load_checkpoint(const fs::path& path, nn::Module& module, Optimizer& optimizer) {
  const Json json = read_state_file(path);
  const auto weights = io::SafetensorsFile::open(path / kWeights);
  module.for_each([&](nn::Parameter& parameter) {
    const Tensor& saved = weights.tensor(parameter.name);
    const Tensor& mine = parameter.var.value();
    require<ModelError>(saved.shape() == mine.shape() && saved.dtype() == mine.dtype(),
                        "checkpoint", "{}: expected {} of shape {}, got {}", path.string(),
                        parameter.name, mine.shape().str(), saved.shape().str());
    mine.copy_from(saved);
  });
  module.bump_version();
  const auto saved = io::SafetensorsFile::open(path / kOptimizer);
  std::map<std::string, Tensor> state;
  for (const std::string& name : saved.names()) state[name] = saved.tensor(name);
  std::map<std::string, std::int64_t> updates;
  for (const auto& [name, count] : json.at("optimizer_updates").as_object())
    updates[name] = count.as_int();
  optimizer.load_state(state, updates);
  Checkpoint out;
  out.state = read_state(json.at("state"));
  out.log = {json.at("log").at("metrics").as_int(), json.at("log").at("events").as_int()};
  out.data_hash = json.at("data_hash").as_string();
  out.order_hash = json.at("order_hash").as_string();
  out.fingerprint = json.at("fingerprint");
  return out;
}

}  // namespace qkv::inline v0::train
