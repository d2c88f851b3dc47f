// qkv bench: timings beside the machine's measured limits.
#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/check.h"
#include "base/file.h"
#include "bench/lock.h"
#include "bench/suites.h"
#include "bench/train_session.h"
#include "terminal.h"
#include "train/config.h"
#include "verbs.h"

namespace qkv::inline v0 {
namespace {

struct BenchOptions {
  std::vector<std::string> names;
  std::string out, shapes, config, export_folder, plot;
  std::vector<std::string> overrides;
  bool quick = false, turns = false;
};

void print_record(const bench::Record& record, const Globals& globals) {
  globals.json ? print_json(record.to_json()) : print_line(bench::table_line(record));
}

void write_results(const std::string& folder, const bench::Suite& suite,
                   const std::vector<bench::Record>& records) {
  const std::filesystem::path path(folder);
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
  if (!options.out.empty()) make_folder(options.out, "bench");
  const bench::BenchLock lock;
  const bool tables = !globals.json;
  if (options.shapes.empty()) {
    if (tables) print_line(bench::table_head());
    for (const bench::Record& record : bench::peak_records(options.quick))
      print_record(record, globals);
  }
  for (const bench::Suite* suite : chosen) {
    if (tables) print_line("\n" + bench::table_head());
    std::vector<bench::Record> records;
    suite->run(suite_options, [&](const bench::Record& record) {
      records.push_back(record);
      print_record(record, globals);
    });
    if (!options.out.empty()) write_results(options.out, *suite, records);
  }
  return 0;
}

// Training in turns, for bench/compare_train.py, which holds the lock of the benchmarks.
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

// Draws the results of another program: FILE.json has the data under "plot", FILE.svg goes to
// --out.
int run_plot(const BenchOptions& options) {
  require<ArgumentError>(!options.out.empty(), "arguments", "expected --out with --plot");
  const std::filesystem::path source(options.plot);
  const Json results = Json::parse(read_file(source), source.string());
  const std::string name = source.stem().string() + ".svg";
  write_file_atomic(std::filesystem::path(options.out) / name,
                    bench::bar_plot_of(results.at("plot")));
  return 0;
}

int run_bench(const BenchOptions& options, const Globals& globals) {
  if (!options.plot.empty()) return run_plot(options);
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
                   "attention, gemm, linear, quantized, elementwise, encode, train (default: all)");
  verb->add_option("--out", options->out, "folder for NAME.json and NAME.svg");
  verb->add_flag("--quick", options->quick, "few shapes and short runs, to see that it works");
  verb->add_option("--shapes", options->shapes,
                   "attention: file with a JSON list of shapes (see docs/benchmarks.md)");
  verb->add_option("--plot", options->plot, "draws the results that bench/compare_*.py wrote");
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
