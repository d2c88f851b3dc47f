#include "train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>

#include <fmt/format.h>

#include "qkv/threads.h"

#include "base/check.h"
#include "base/log.h"
#include "models/encoder_classifier.h"
#include "ops/optimizer.h"
#include "telemetry/process.h"
#include "telemetry/run_log.h"
#include "train/batches.h"
#include "train/build.h"
#include "train/checkpoint.h"
#include "train/diagnose.h"
#include "train/evaluate.h"
#include "train/run_folder.h"
#include "train/step.h"
#include "train/token_dropout.h"

namespace qkv::inline v0::train {
namespace fs = std::filesystem;
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

bool is_norm_gain(const std::string& name) {
  const bool norm =
      name.find("norm") != std::string::npos || name.find("Norm") != std::string::npos;
  return norm && name.size() > 7 && name.compare(name.size() - 7, 7, ".weight") == 0;
}

class Trainer {
 public:
  Trainer(const TrainConfig& config, const fs::path& folder, bool resume, const TrainHooks& hooks)
      : config_(config),
        hooks_(hooks),
        built_(build_run(config, folder, resume)),
        optimizer_(built_.model.module(), optimizer_options(config.train)),
        stream_(built_.data.train, config.train.batch_tokens,
                static_cast<std::uint64_t>(config.train.seed)),
        token_dropout_(config.train.token_dropout, built_.data.tokenizer,
                       static_cast<std::uint64_t>(config.train.seed)) {
    total_steps_ = config.train.steps;
    if (total_steps_ == 0) {
      const std::int64_t batches = stream_.count(config.train.epochs);
      total_steps_ = (batches + config.train.accumulate - 1) / config.train.accumulate;
    }
    schedule_ = schedule_of(config.train, total_steps_);
    restore(resume);
  }

  TrainOutcome run();

 private:
  void restore(bool resume);
  bool step();  // true: an epoch ended
  [[noreturn]] void refuse_step(const std::vector<const Sample*>& samples, const char* what);
  void note_epochs(std::int64_t before);
  void record_step(const GradientNorms& norms, double rate, double scale);
  void evaluate_now();
  void keep_last_model();
  void save();
  void event(const char* name, const std::string& message);
  void finish();
  void report_progress();
  bool early_stopped() const {
    return config_.train.early_stop > 0 &&
           state_.evaluations_without_better >= config_.train.early_stop;
  }
  bool done() const { return state_.step >= total_steps_ || early_stopped(); }
  Evaluation evaluate_samples(const std::vector<Sample>& samples, const EncoderClassifier& model,
                              const char* split, bool best);
  TrainOutcome outcome(bool interrupted);
  double seconds() const { return seconds_before_ + seconds_since(start_); }

  const TrainConfig& config_;
  const TrainHooks& hooks_;
  Clock::time_point start_ = Clock::now();
  BuiltRun built_;
  Optimizer optimizer_;
  BatchStream stream_;
  TokenDropout token_dropout_;
  Schedule schedule_;
  std::int64_t total_steps_ = 0;
  TrainState state_;
  std::unique_ptr<telemetry::RunLog> log_;
  double seconds_before_ = 0;  // of the parts of this run that came before
  std::int64_t saved_step_ = -1;
  std::optional<double> peak_;
  // Since the last record; figures of speed, not of the result.
  double window_seconds_ = 0, window_cpu_ = 0, window_flops_ = 0;
  double smooth_rate_ = 0;  // tokens per second, for the progress line
  std::int64_t first_step_ = 0;
  std::optional<Evaluation> test_;
};

void Trainer::restore(bool resume) {
  std::optional<fs::path> path;
  if (resume) path = latest_checkpoint(built_.folder->checkpoints());
  if (path) {
    const Checkpoint saved = load_checkpoint(*path, built_.model.module(), optimizer_);
    require<ArgumentError>(
        saved.data_hash == built_.data.hash, "arguments",
        "expected the data that {} was trained on, got other files; choose another --out",
        built_.folder->path().string());
    state_ = saved.state;
    seconds_before_ = state_.seconds;
    stream_.seek(state_.epoch, state_.batch);
    require<ModelError>(
        stream_.order_hash() == saved.order_hash, "checkpoint",
        "{}: expected the order of batches {}, got {}: another version of the program wrote it",
        path->string(), stream_.order_hash(), saved.order_hash);
    log_ = std::make_unique<telemetry::RunLog>(built_.folder->path(), saved.log);
    saved_step_ = state_.step;
    event("resume", "from step " + std::to_string(state_.step));
    if (!(saved.fingerprint == machine_fingerprint())) {
      const std::string message = "this machine or program is not the one of the checkpoint (" +
                                  saved.fingerprint.dump() +
                                  "): the result may differ in the last bits";
      log_message(LogLevel::kWarning, message);
      event("fingerprint", message);
    }
  } else {
    if (resume) log_message(LogLevel::kInfo, "no checkpoint to resume from: starting over");
    log_ = std::make_unique<telemetry::RunLog>(built_.folder->path(), telemetry::RunLogPosition{});
    event(
        "start",
        fmt::format("{} steps, {} parameters, {} training texts, {} validation texts, {} labels",
                    total_steps_, built_.model.module().num_parameters(), built_.data.train.size(),
                    built_.data.validation.size(), built_.data.labels.size()));
  }
  first_step_ = state_.step;
}

void Trainer::event(const char* name, const std::string& message) {
  log_->write(telemetry::EventRecord{state_.step, telemetry::unix_time(), name, message});
}

void Trainer::refuse_step(const std::vector<const Sample*>& samples, const char* what) {
  Context context;
  context.training = true;
  context.seed = static_cast<std::uint64_t>(config_.train.seed);
  context.step = static_cast<std::uint32_t>(state_.step + 1);
  const ops::CrossEntropyOptions loss{.label_smoothing = config_.train.label_smoothing};
  const auto found = find_non_finite_step(built_.model, context, samples, loss);
  const std::string where =
      found ? found->str() : "in the sum over the batch, though every sample alone is finite";
  const std::string message = fmt::format(
      "step {}: the {} is not finite; the first such value is {}. The step was refused; the last "
      "checkpoint is whole. Try a "
      "lower train.learning_rate, a longer warm-up or train.clip_norm",
      state_.step + 1, what, where);
  event("non_finite", message);
  throw NumericError("train", message);
}

bool Trainer::step() {
  const bool by_epochs = config_.train.steps == 0;
  const auto start = Clock::now();
  const double cpu = telemetry::cpu_seconds();
  const std::int64_t epochs_before = stream_.epochs_done();
  const ops::CrossEntropyOptions loss{.label_smoothing = config_.train.label_smoothing};
  built_.model.module().clear_gradients();
  StepSums sums;
  std::vector<const Sample*> samples;
  std::deque<Sample> hidden;
  for (std::int64_t i = 0; i < config_.train.accumulate; ++i) {
    if (by_epochs && stream_.epochs_done() >= config_.train.epochs) break;
    const std::vector<const Sample*> members =
        token_dropout_.hide(stream_.next(), state_.step + 1, hidden);
    const StepSums part =
        accumulate_gradients(built_.model, members, loss,
                             static_cast<std::uint64_t>(config_.train.seed), state_.step + 1);
    samples.insert(samples.end(), members.begin(), members.end());
    sums.loss_sum += part.loss_sum;
    sums.counted += part.counted;
    sums.right += part.right;
    sums.tokens += part.tokens;
    sums.flops += part.flops;
  }
  if (!std::isfinite(sums.loss_sum)) refuse_step(samples, "loss");
  const double scale = 1.0 / static_cast<double>(std::max<std::int64_t>(sums.counted, 1));
  const GradientNorms norms = optimizer_.gradient_norms(scale, config_.train.clip_norm_type);
  if (!std::isfinite(norms.norm)) refuse_step(samples, "gradient norm");
  const double rate = learning_rate(schedule_, state_.step + 1);
  const double clip = clip_scale(norms.norm, config_.train.clip_norm);
  optimizer_.step(rate, scale * clip);

  ++state_.step;
  state_.epoch = stream_.epoch();
  state_.batch = stream_.batch();
  state_.tokens += sums.tokens;
  state_.loss = sums.loss_sum * scale;
  state_.window.loss_sum += sums.loss_sum;
  state_.window.counted += sums.counted;
  state_.window.tokens += sums.tokens;
  state_.epoch_right += sums.right;
  state_.epoch_counted += sums.counted;
  window_flops_ += sums.flops;
  window_cpu_ += telemetry::cpu_seconds() - cpu;
  const double took = seconds_since(start);
  window_seconds_ += took;
  state_.train_seconds += took;
  const double speed = static_cast<double>(sums.tokens) / took;
  smooth_rate_ = smooth_rate_ == 0 ? speed : 0.9 * smooth_rate_ + 0.1 * speed;
  if (state_.step % config_.train.log_every == 0 || state_.step == total_steps_)
    record_step(norms, rate, clip);
  note_epochs(epochs_before);
  return stream_.epochs_done() > epochs_before;
}

void Trainer::note_epochs(std::int64_t before) {
  if (stream_.epochs_done() == before) return;
  state_.train_accuracy = static_cast<double>(state_.epoch_right) /
                          static_cast<double>(std::max<std::int64_t>(state_.epoch_counted, 1));
  state_.epoch_right = state_.epoch_counted = 0;
}

void Trainer::record_step(const GradientNorms& norms, double rate, double scale) {
  telemetry::TrainRecord record;
  record.step = state_.step;
  record.time = telemetry::unix_time();
  record.epoch = stream_.position();
  record.loss = state_.window.loss_sum /
                static_cast<double>(std::max<std::int64_t>(state_.window.counted, 1));
  record.learning_rate = rate;
  record.grad_norm = norms.norm;
  record.clip_scale = scale;
  record.tokens = state_.window.tokens;
  const double took = std::max(window_seconds_, 1e-9);
  record.tokens_per_second = static_cast<double>(record.tokens) / took;
  record.cpu_share = window_cpu_ / (took * num_threads());
  if (hooks_.peak_flops && !peak_) peak_ = hooks_.peak_flops();
  if (peak_ && *peak_ > 0) record.peak_share = window_flops_ / took / *peak_;
  record.bytes = telemetry::resident_bytes();
  const auto& groups = built_.model.module().groups();
  for (std::size_t g = 0; g < groups.size(); ++g) {
    telemetry::LayerRecord layer{
        groups[g].name, norms.by_group[g], std::sqrt(ops::sum_of_squares(groups[g].values)), {}};
    for (const nn::Parameter& parameter : groups[g].parameters) {
      if (!is_norm_gain(parameter.name)) continue;
      const Tensor& gamma = parameter.var.value();
      const bool inside = parameter.name.rfind(layer.name + ".", 0) == 0;
      layer.norms.emplace_back(
          inside ? parameter.name.substr(layer.name.size() + 1) : parameter.name,
          telemetry::gamma_stats(gamma.data<float>(), gamma.numel()));
    }
    record.layers.push_back(std::move(layer));
  }
  log_->write(record);
  state_.window = {};
  window_seconds_ = window_cpu_ = window_flops_ = 0;
}

Evaluation Trainer::evaluate_samples(const std::vector<Sample>& samples,
                                     const EncoderClassifier& model, const char* split, bool best) {
  Evaluation result = evaluate(model, samples);
  telemetry::EvalRecord record;
  record.step = state_.step;
  record.time = telemetry::unix_time();
  record.split = split;
  record.loss = result.loss;
  record.accuracy = result.confusion.accuracy();
  record.macro_f1 = result.confusion.macro_f1();
  record.n = result.n();
  const bool better = record.accuracy > state_.best.accuracy ||
                      (record.accuracy == state_.best.accuracy && record.loss < state_.best.loss);
  record.best = best && (state_.best.step == 0 || better);
  log_->write(record);
  log_message(LogLevel::kInfo,
              fmt::format("step {}/{}  epoch {:.1f}  {} accuracy {:.4f}  loss {:.4f}{}",
                          state_.step, total_steps_, stream_.position(), split, record.accuracy,
                          record.loss, record.best ? "  (best)" : ""));
  if (!best) return result;
  if (record.best) {
    state_.best = {state_.step, record.accuracy, record.loss};
    state_.evaluations_without_better = 0;
    built_.model.save(built_.folder->path());
  } else {
    ++state_.evaluations_without_better;
  }
  return result;
}

void Trainer::evaluate_now() {
  if (!built_.data.validation.empty())
    evaluate_samples(built_.data.validation, built_.model, "validation", true);
}

void Trainer::save() {
  if (!state_.finished) keep_last_model();
  state_.seconds = seconds();
  save_checkpoint(
      built_.folder->checkpoints(), built_.model.module(), optimizer_,
      {state_, log_->sync(), built_.data.hash, stream_.order_hash(), machine_fingerprint()});
  saved_step_ = state_.step;
}

void Trainer::report_progress() {
  if (!hooks_.progress) return;
  const double per_step =
      state_.train_seconds / static_cast<double>(std::max<std::int64_t>(state_.step, 1));
  hooks_.progress({state_.step, total_steps_, stream_.position(), state_.loss, smooth_rate_,
                   per_step * static_cast<double>(total_steps_ - state_.step)});
}

void Trainer::keep_last_model() {
  if (!built_.data.validation.empty()) return;
  state_.best.step = state_.step;  // nothing to choose by: the last one is the best known
  built_.model.save(built_.folder->path());
}

void Trainer::finish() {
  const bool before = state_.finished;
  if (!before) keep_last_model();
  if (!built_.data.test.empty()) {
    const EncoderClassifier best = EncoderClassifier::load(built_.folder->path());
    test_ = before ? evaluate(best, built_.data.test)
                   : evaluate_samples(built_.data.test, best, "test", false);
  }
  if (before) return;
  const std::int64_t waited = state_.evaluations_without_better;
  if (early_stopped()) {
    event("early_stop", fmt::format("no better model in {} evaluations", waited));
  } else {
    event("end", "all steps done");
  }
  state_.finished = true;
  save();
}

TrainOutcome Trainer::outcome(bool interrupted) {
  TrainOutcome out;
  out.interrupted = interrupted;
  out.step = state_.step;
  out.best_step = state_.best.step;
  out.epochs = stream_.epochs_done();
  out.loss = state_.loss;
  if (test_) {
    out.test_accuracy = test_->confusion.accuracy();
    out.test_macro_f1 = test_->confusion.macro_f1();
  }
  const bool validated = !built_.data.validation.empty();
  out.metric = validated || test_ ? "accuracy" : "train_accuracy";
  out.value = validated ? state_.best.accuracy : test_ ? *out.test_accuracy : state_.train_accuracy;
  out.seconds = seconds();
  out.tokens_per_second = static_cast<double>(state_.tokens) / std::max(state_.train_seconds, 1e-9);
  out.peak_bytes = telemetry::peak_resident_bytes();
  return out;
}

TrainOutcome Trainer::run() {
  const TrainSection& t = config_.train;
  while (!done()) {
    const bool epoch_end = step();
    report_progress();
    const bool last = state_.step == total_steps_;
    const bool evaluate_here =
        last || (t.eval_every > 0 ? state_.step % t.eval_every == 0 : epoch_end);
    if (evaluate_here) evaluate_now();
    if (done()) break;  // finish() saves
    if (t.save_every > 0 ? state_.step % t.save_every == 0 : evaluate_here) save();
    if (hooks_.stop && hooks_.stop(state_.step)) {
      if (saved_step_ != state_.step) save();
      event("stop", "stopped after step " + std::to_string(state_.step) + "; --resume continues");
      return outcome(true);
    }
  }
  finish();
  return outcome(false);
}

}  // namespace

TrainOutcome train_classifier(const TrainConfig& config, const fs::path& folder, bool resume,
                              const TrainHooks& hooks) {
  Trainer trainer(config, folder, resume, hooks);
  return trainer.run();
}

TrainOutcome train_classifier(const fs::path& config, const fs::path& folder,
                              const TrainOptions& options) {
  return train_classifier(read_train_config(config, options.overrides), folder, options.resume,
                          options.hooks);
}

}  // namespace qkv::inline v0::train
