// qkv info: the machine, and what qkv uses of it and why.
#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include <fmt/format.h>

#include "bench/machine.h"
#include "terminal.h"
#include "verbs.h"

namespace qkv::inline v0 {
namespace {

std::string gib(std::int64_t bytes) {
  return fmt::format("{:.1f} GiB", static_cast<double>(bytes) / (1 << 30));
}

void print_machine(const Json& m) {
  std::string features;
  for (const Json& feature : m.at("features").as_array()) features += " " + feature.as_string();
  std::string libraries;
  for (const auto& [name, version] : m.at("libraries").as_object())
    libraries += fmt::format("{}{} {}", libraries.empty() ? "" : ", ", name, version.as_string());
  const Json& limit = m.at("memory_limit_bytes");
  print_line(fmt::format("qkv        {}", m.at("version").as_string()));
  print_line(fmt::format("processor  {}", m.at("processor").as_string()));
  print_line(fmt::format("features  {}", features.empty() ? " none that qkv knows" : features));
  print_line(fmt::format("isa        {}", m.at("isa_reason").as_string()));
  print_line(fmt::format("bf16       attention on {}", m.at("bf16_attention").as_string()));
  print_line(fmt::format("threads    {}", m.at("threads_reason").as_string()));
  print_line(
      fmt::format("memory     {}, {} available, {}", gib(m.at("memory_bytes").as_int()),
                  gib(m.at("memory_available_bytes").as_int()),
                  limit.is_null() ? "no cgroup limit" : "cgroup limit " + gib(limit.as_int())));
  print_line(fmt::format("libraries  {}", libraries));
  const Json* peaks = m.find("peaks");
  if (peaks == nullptr) return;
  print_line(fmt::format(
      "peak       {:.0f} GFLOP/s of fp32 multiply-adds, {:.0f} GB/s reading {} MiB, measured now",
      peaks->at("gflops").as_double(), peaks->at("read_gigabytes_per_second").as_double(),
      peaks->at("read_array_bytes").as_int() >> 20));
}

int run_info(bool measure, const Globals& globals) {
  const Json machine = bench::describe_machine(measure);
  if (globals.json) {
    print_json(machine);
  } else {
    print_machine(machine);
  }
  return 0;
}

}  // namespace

void add_info(CLI::App& app, Globals& globals) {
  CLI::App* verb = app.add_subcommand("info", "shows the machine and what qkv uses of it");
  auto skip_peak = std::make_shared<bool>(false);
  verb->add_flag("--no-peak", *skip_peak, "leaves out the measured peaks, which take some 0.2 s");
  verb->footer("Examples:\n  qkv info\n  QKV_MAX_ISA=avx2 qkv info --json");
  verb->callback([skip_peak, &globals] {
    globals.run = [skip_peak, &globals] { return run_info(!*skip_peak, globals); };
  });
}

}  // namespace qkv::inline v0
