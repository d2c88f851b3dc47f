// qkv bench: timings beside the machine's measured limits.
#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/check.h"
#include "base/file.h"
#include "bench/suites.h"
#include "bench/train_session.h"
#include "terminal.h"
#include "train/config.h"
#include "verbs.h"

namespace qkv::inline v0 {
namespace {

struct BenchOptions {
  std::vector<std::string> names;
  std::string out, shapes, config, export_folder;
  std::vector<std::string> overrides;
  bool quick = false, turns = false;
};

void print_peaks(const Globals& globals) {
  const double multiply_adds = bench::MultiplyAddProbe().best() / 1e9;
  const double exponentials = bench::ExponentialProbe().best() / 1e9;
  constexpr std::int64_t kCache = 1 << 17, kMemory = 1 << 26;  // floats: 512 KiB and 256 MiB
  const double cache = bench::BandwidthProbe({1, 0, 0}, kCache).best() / 1e9;
  const double memory = bench::BandwidthProbe({1, 0, 0}, kMemory).best() / 1e9;
  const double copy = bench::BandwidthProbe({1, 0, 1}, kMemory / 2).best() / 1e9;
  if (globals.json) {
    Json out = bench::machine_json();
    out["name"] = "peaks";
    out["multiply_add_gflops"] = multiply_adds;
    out["exp_per_second"] = exponentials * 1e9;
    out["read_cache_gb_per_second"] = cache;
    out["read_memory_gb_per_second"] = memory;
    out["copy_memory_gb_per_second"] = copy;
    print_json(out);
    return;
  }
  print_line(
      fmt::format("peaks now: {:.0f} GFLOP/s fp32 multiply-add, {:.1f} Gexp/s, {:.0f} GB/s read of "
                  "512 KiB, {:.1f} GB/s read and "
                  "{:.1f} GB/s copy of 256 MiB",
                  multiply_adds, exponentials, cache, memory, copy));
}

void write_results(const std::string& folder, const bench::Suite& suite,
                   const std::vector<bench::Record>& records) {
  const std::filesystem::path path(folder);
  std::error_code error;
  std::filesystem::create_directories(path, error);
  require<IoError>(!error, "bench", "expected a folder that can be made, got {}: {}", folder,
                   error.message());
  write_file_atomic(path / (std::string(suite.name) + ".json"),
                    bench::suite_json(suite, records).dump(1) + "\n");
  write_file_atomic(path / (std::string(suite.name) + ".svg"), bench::suite_plot(suite, records));
}

int run_suites(const BenchOptions& options, const Globals& globals) {
  std::vector<const bench::Suite*> chosen;
  for (const std::string& name : options.names) chosen.push_back(&bench::find_suite(name));
  if (chosen.empty())
    for (const bench::Suite& suite : bench::suites()) chosen.push_back(&suite);
  bench::SuiteOptions suite_options;
  suite_options.quick = options.quick;
  suite_options.shapes = options.shapes;
  suite_options.seed = globals.seed.value_or(0);
  const bench::BenchLock lock;
  if (options.shapes.empty()) print_peaks(globals);
  for (const bench::Suite* suite : chosen) {
    if (!globals.json) print_line("\n" + bench::table_head());
    std::vector<bench::Record> records;
    suite->run(suite_options, [&](const bench::Record& record) {
      records.push_back(record);
      if (globals.json) {
        print_json(record.to_json());
      } else {
        print_line(bench::table_line(record));
      }
    });
    if (!options.out.empty()) write_results(options.out, *suite, records);
  }
  return 0;
}

// Training in turns, for bench/compare_train.py. It holds the lock of the benchmarks itself.
int run_turns(const BenchOptions& options) {
  const train::TrainConfig config = train::read_train_config(options.config, options.overrides);
  const std::filesystem::path folder(options.export_folder);
  bench::TrainSession session(train::build_run(config, folder / "run", /*resume=*/false), config);
  session.export_to(folder);
  if (!options.turns) return 0;
  Json ready = Json::object();
  ready["ready"] = true;
  print_json(ready);
  ItemReader lines({"-"}, "bench");
  bench::serve_turns(
      session, [&](std::string& line) { return lines.next(line); },
      [](const Json& answer) { print_json(answer); });
  return 0;
}

int run_bench(const BenchOptions& options, const Globals& globals) {
  if (options.config.empty() && options.export_folder.empty()) {
    require<ArgumentError>(!options.turns && options.overrides.empty(), "arguments",
                           "--turns and --set need --config and --export");
    return run_suites(options, globals);
  }
  require<ArgumentError>(!options.config.empty() && !options.export_folder.empty(), "arguments",
                         "expected --config and --export together");
  require<ArgumentError>(options.names == std::vector<std::string>{"train"}, "arguments",
                         "--config and --export belong to `qkv bench train`");
  return run_turns(options);
}

}  // namespace

void add_bench(CLI::App& app, Globals& globals) {
  auto options = std::make_shared<BenchOptions>();
  CLI::App* verb = app.add_subcommand("bench", "timings, as shares of the machine's measured peak");
  verb->add_option("NAME", options->names,
                   "attention, gemm, linear, elementwise, encode, train (default: all)");
  verb->add_option("--out", options->out, "folder for NAME.json and NAME.svg");
  verb->add_flag("--quick", options->quick, "few shapes and short runs, to see that it works");
  verb->add_option("--shapes", options->shapes,
                   "attention: JSON list of shapes (see docs/benchmarks.md)");
  verb->add_option("--config", options->config, "train: a training configuration, with --export");
  verb->add_option("--set", options->overrides,
                   "train: overrides of the configuration, section.key=value");
  verb->add_option("--export", options->export_folder,
                   "train: folder for the ids, batches and first weights, for a peer");
  verb->add_flag("--turns", options->turns,
                 "train: numbers of steps on stdin, one JSON answer each");
  verb->footer(
      "Examples:\n  qkv bench attention linear\n  qkv bench --out out/bench\n\nEvery figure stands "
      "beside a probe of the same minute; see docs/benchmarks.md.");
  verb->callback([options, &globals] {
    globals.run = [options, &globals] { return run_bench(*options, globals); };
  });
}

}  // namespace qkv::inline v0
