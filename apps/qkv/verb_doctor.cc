// qkv doctor: what is wrong with a model folder, or with this machine's kernels.
#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include <fmt/format.h>

#include "qkv/doctor.h"

#include "base/check.h"
#include "doctor/machine.h"
#include "doctor/symptoms.h"
#include "terminal.h"
#include "verbs.h"

namespace qkv::inline v0 {
namespace {

constexpr int kFound = 3;

struct DoctorOptions {
  std::string target, symptom;
  bool rules = false, page = false;
};

void print_rules(bool json) {
  for (const doctor::Rule& rule : doctor::rules()) {
    if (!json) {
      print_line(fmt::format("{:<18} {}", rule.id, rule.title));
      continue;
    }
    Json out = Json::object();
    out["id"] = rule.id;
    out["title"] = rule.title;
    out["symptom"] = rule.symptom;
    out["why"] = rule.why;
    out["remedy"] = rule.remedy;
    print_json(out);
  }
}

void print_symptoms(const std::string& text, bool json) {
  for (const doctor::Symptom* symptom : doctor::find_symptoms(text)) {
    Json causes = Json::array();
    if (!json) print_line(fmt::format("{}\n", symptom->name));
    int number = 0;
    for (const doctor::Cause& cause : symptom->causes) {
      const std::string rule = cause.rule != nullptr ? cause.rule : "";
      if (!json) {
        print_line(fmt::format("  {}. {}{}\n     told by: {}\n     remedy:  {}\n", ++number,
                               cause.what, rule.empty() ? "" : " [" + rule + "]", cause.test,
                               doctor::remedy_of(cause)));
        continue;
      }
      Json item = Json::object();
      item["id"] = rule.empty() ? Json() : Json(rule);
      item["cause"] = cause.what;
      item["command"] = cause.test;
      item["remedy"] = doctor::remedy_of(cause);
      item["doc"] = rule.empty() ? Json() : Json("docs/doctor/" + rule + ".md");
      causes.push_back(std::move(item));
    }
    if (!json) continue;
    Json out = Json::object();
    out["symptom"] = symptom->name;
    out["causes"] = std::move(causes);
    print_json(out);
  }
}

doctor::Report check_machine(const Globals& globals, Json& kernels) {
  const auto checks = doctor::compare_kernels(doctor::kernel_cases());
  for (const doctor::KernelCheck& check : checks) {
    if (globals.json) {
      Json item = Json::object();
      item["kernel"] = check.name;
      item["implementation"] = check.implementation;
      item["error"] = check.error;
      item["tolerance"] = check.tolerance;
      kernels.push_back(std::move(item));
    } else {
      print_line(fmt::format("{:<10} {:<36} {:<5} error {:.2g} of {:.0e}", check.implementation,
                             check.name, check.good() ? "fine" : "WRONG", check.error,
                             check.tolerance));
    }
  }
  return doctor::kernel_report(checks);
}

int run_doctor(const DoctorOptions& options, const Globals& globals) {
  if (options.rules) {
    print_rules(globals.json);
    return 0;
  }
  if (options.page) {
    std::string page = doctor::troubleshooting_page();
    page.pop_back();  // print_line ends the last line
    print_line(page);
    return 0;
  }
  if (!options.symptom.empty()) {
    print_symptoms(options.symptom, globals.json);
    return 0;
  }
  require<ArgumentError>(!options.target.empty(), "arguments",
                         "expected a model folder, a .safetensors file, 'machine', or --symptom "
                         "with what is seen, got none");
  Json kernels = Json::array();
  const bool machine = options.target == "machine";
  const doctor::Report report =
      machine ? check_machine(globals, kernels) : doctor::check_path(options.target);
  if (globals.json) {
    Json out = Json::object();
    out["target"] = options.target;
    const Json body = Json::parse(report.to_json());
    for (const auto& [key, value] : body.as_object()) out[key] = value;
    if (machine) out["kernels"] = std::move(kernels);
    print_json(out);
  } else {
    print_line(report.str());
  }
  return report.ok() ? 0 : kFound;
}

}  // namespace

void add_doctor(CLI::App& app, Globals& globals) {
  auto options = std::make_shared<DoctorOptions>();
  CLI::App* verb = app.add_subcommand(
      "doctor", "looks for what is wrong with a model, or with this machine's kernels");
  verb->add_option("TARGET", options->target,
                   "folder of a model, a .safetensors file, or 'machine'");
  verb->add_option("--symptom", options->symptom,
                   "what is seen, in words: likely causes, how to tell them apart, remedies");
  verb->add_flag("--rules", options->rules, "lists the rules");
  verb->add_flag("--troubleshooting", options->page, "docs/troubleshooting.md: all symptoms");
  verb->footer(
      "Exit status: 3 if there is an error, 0 for warnings and notes.\n"
      "Examples:\n  qkv doctor out/demo\n  qkv doctor machine --json\n  qkv doctor --symptom "
      "\"loss nan\"\n  qkv doctor --rules");
  verb->callback([options, &globals] {
    globals.run = [options, &globals] { return run_doctor(*options, globals); };
  });
}

}  // namespace qkv::inline v0
