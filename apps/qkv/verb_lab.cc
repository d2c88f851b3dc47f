// qkv lab: claims about Transformers, measured again.
#include <CLI/CLI.hpp>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/check.h"
#include "base/file.h"
#include "lab/lab.h"
#include "terminal.h"
#include "verbs.h"

namespace qkv::inline v0 {
namespace {

struct LabOptions {
  std::string name;
  bool list = false, full = false;
  std::string out, data, model;
};

void print_list(const Globals& globals) {
  for (const lab::Experiment& e : lab::experiments()) {
    if (globals.json) {
      Json json = Json::object();
      json["name"] = e.name;
      json["claim"] = e.claim;
      print_json(json);
    } else {
      print_line(fmt::format("{:20s} {}", e.name, e.claim));
    }
  }
}

// NAME.json and the pictures.
void write_files(const std::filesystem::path& folder, const lab::Experiment& experiment,
                 const lab::Result& result) {
  write_file_atomic(folder / (std::string(experiment.name) + ".json"),
                    lab::to_json(experiment, result).dump(2) + "\n");
  for (const lab::Picture& picture : result.pictures)
    write_file_atomic(folder / picture.file, picture.bytes);
}

// The bundled data: as given, else beside the working directory or the program.
std::filesystem::path support_data(const std::string& given) {
  if (!given.empty()) return given;
  std::vector<std::filesystem::path> places{"data/support"};
  std::error_code code;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", code);
  if (!code) {
    const std::filesystem::path folder = program.parent_path();
    places.push_back(folder / "../../data/support");
    places.push_back(folder / "../share/qkv/support");
  }
  for (const std::filesystem::path& place : places) {
    if (std::filesystem::exists(place / "test.tsv", code)) return place;
  }
  return places.front();
}

int run_lab(const LabOptions& options, const Globals& globals) {
  if (options.list || options.name.empty()) {
    print_list(globals);
    return 0;
  }
  std::vector<const lab::Experiment*> chosen;
  if (options.name == "all") {
    for (const lab::Experiment& e : lab::experiments()) chosen.push_back(&e);
  } else {
    chosen.push_back(&lab::find_experiment(options.name));
  }
  lab::Options settings;
  settings.full = options.full;
  settings.seed = globals.seed.value_or(settings.seed);
  settings.data = support_data(options.data);
  settings.model = options.model;
  if (!options.out.empty()) make_folder(options.out, "lab");  // before the minutes of work
  for (const lab::Experiment* experiment : chosen) {
    const auto start = std::chrono::steady_clock::now();
    const lab::Result result = experiment->run(settings);
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (globals.json) {
      Json json = lab::to_json(*experiment, result);
      json["seconds"] = seconds;
      print_json(json);
    } else {
      print_line(lab::to_text(*experiment, result));
    }
    if (!options.out.empty()) write_files(options.out, *experiment, result);
    log_message(LogLevel::kInfo, fmt::format("{}: {:.1f} s", experiment->name, seconds));
  }
  return 0;
}

}  // namespace

void add_lab(CLI::App& app, Globals& globals) {
  auto options = std::make_shared<LabOptions>();
  CLI::App* verb = app.add_subcommand("lab", "measures claims about Transformers again");
  verb->add_option("NAME", options->name, "an experiment, or 'all'; none lists them");
  verb->add_flag("--list", options->list, "names the experiments and their claims");
  verb->add_flag("--full", options->full, "larger grids; takes longer");
  verb->add_option("--out", options->out, "folder for NAME.json and pictures");
  verb->add_option("--data", options->data,
                   "folder of the support requests, for broken-attention (default: data/support)");
  verb->add_option(
      "--model", options->model,
      "trained run folder for broken-attention, such as out/demo (default: trains one)");
  verb->footer(
      "Examples:\n  qkv lab --list\n  qkv lab scale-gradient --json\n  qkv lab all --out out/lab");
  verb->callback([options, &globals] {
    globals.run = [options, &globals] { return run_lab(*options, globals); };
  });
}

}  // namespace qkv::inline v0
