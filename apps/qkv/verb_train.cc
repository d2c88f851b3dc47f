// qkv train: from a configuration to a folder that the other verbs load.
#include <CLI/CLI.hpp>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/check.h"
#include "base/log.h"
#include "bench/probe.h"
#include "terminal.h"
#include "train/trainer.h"
#include "verbs.h"

namespace qkv::inline v0 {
namespace {

struct TrainOptions {
  std::string config;
  std::vector<std::string> set, more;  // --set a.b=v c.d=w
  std::string out;
  bool resume = false;
};

std::string clock_text(double seconds) {
  const auto s = std::llround(seconds);
  return s < 3600 ? fmt::format("{}:{:02}", s / 60, s % 60)
                  : fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
}

Json outcome_json(const train::TrainOutcome& outcome) {
  Json out = Json::object();
  out["step"] = outcome.step;
  out["loss"] = outcome.loss;
  out["metric"] = outcome.metric;
  out["value"] = outcome.value;
  out["seconds"] = outcome.seconds;
  out["tokens_per_second"] = outcome.tokens_per_second;
  out["peak_bytes"] = outcome.peak_bytes;
  out["best_step"] = outcome.best_step;
  out["epochs"] = outcome.epochs;
  if (outcome.test_accuracy) out["test_accuracy"] = *outcome.test_accuracy;
  if (outcome.test_macro_f1) out["test_macro_f1"] = *outcome.test_macro_f1;
  out["interrupted"] = outcome.interrupted;
  return out;
}

void print_outcome(const train::TrainOutcome& outcome, const std::filesystem::path& folder) {
  print_line(fmt::format("{:<20}{}", "steps", outcome.step));
  print_line(fmt::format("{:<20}{:.4f}", "loss", outcome.loss));
  print_line(
      fmt::format("{:<20}{:.4f}  (step {})", outcome.metric, outcome.value, outcome.best_step));
  if (outcome.test_accuracy)
    print_line(fmt::format("{:<20}{:.4f}", "test accuracy", *outcome.test_accuracy));
  if (outcome.test_macro_f1)
    print_line(fmt::format("{:<20}{:.4f}", "test macro-F1", *outcome.test_macro_f1));
  print_line(fmt::format("{:<20}{}", "time", clock_text(outcome.seconds)));
  print_line(fmt::format("{:<20}{:.0f}", "tokens per second", outcome.tokens_per_second));
  print_line(fmt::format("{:<20}{} MiB", "peak memory", outcome.peak_bytes >> 20));
  print_line(fmt::format("{:<20}{}", "model", folder.string()));
}

int run_train(const TrainOptions& options, const Globals& globals) {
  require<ArgumentError>(options.more.empty() || !options.set.empty(), "arguments",
                         "expected one configuration, got '{}' after it; values go behind --set",
                         options.more.empty() ? "" : options.more[0]);
  std::vector<std::string> overrides = options.set;
  overrides.insert(overrides.end(), options.more.begin(), options.more.end());
  if (globals.seed) overrides.push_back(fmt::format("train.seed={}", *globals.seed));
  const train::TrainConfig config = train::read_train_config(options.config, overrides);
  const std::filesystem::path folder =
      options.out.empty()
          ? std::filesystem::path("out") / std::filesystem::path(options.config).stem()
          : std::filesystem::path(options.out);
  ProgressLine line(globals.verbosity);
  train::TrainHooks hooks;
  hooks.progress = [&](const train::Progress& p) {
    if (!line.due()) return;
    line.update(fmt::format("step {}/{}  epoch {:.2f}  loss {:.4f}  {:.0f} tokens/s  {} left",
                            p.step, p.total_steps, p.epoch, p.loss, p.tokens_per_second,
                            clock_text(p.seconds_left)));
  };
  hooks.stop = [](std::int64_t) { return noted_signal() != 0; };
  hooks.peak_flops = [] { return bench::MultiplyAddProbe().best(); };
  note_signals();
  const train::TrainOutcome outcome =
      train::train_classifier(config, folder, options.resume, hooks);
  line.clear();
  if (globals.json) {
    print_json(outcome_json(outcome));
  } else {
    print_outcome(outcome, folder);
  }
  if (outcome.interrupted) {
    throw ErrorOf<ErrorCode::kInterrupted>(
        "train", fmt::format("stopped after step {} and saved; --resume continues", outcome.step));
  }
  return 0;
}

}  // namespace

void add_train(CLI::App& app, Globals& globals) {
  auto options = std::make_shared<TrainOptions>();
  CLI::App* verb = app.add_subcommand("train", "trains a text classifier as a configuration says");
  verb->add_option("CONFIG", options->config, "configuration (TOML; docs/configuration.md)")
      ->required();
  verb->add_option("KEY=VALUE", options->more, "further values for --set");
  verb->add_option("--set", options->set, "section.key=value, over the file; one or more")
      ->allow_extra_args(false);
  verb->add_option("--out", options->out,
                   "folder to write to, new or empty (default out/NAME of the configuration)");
  verb->add_flag("--resume", options->resume,
                 "continues the run in --out from its last checkpoint");
  verb->footer(
      "Examples:\n  qkv train examples/banking77.toml --out out/banking77\n"
      "  qkv train my.toml --set train.epochs=5 --set model.positions=rope --resume");
  verb->callback([options, &globals] {
    globals.run = [options, &globals] { return run_train(*options, globals); };
  });
}

}  // namespace qkv::inline v0
