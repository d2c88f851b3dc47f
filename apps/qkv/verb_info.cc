// qkv info: the machine, and what qkv uses of it and why.
#include <CLI/CLI.hpp>

#include <fmt/format.h>

#include "qkv/version.h"

#include "base/cpu.h"
#include "base/thread_pool.h"
#include "terminal.h"
#include "verbs.h"

namespace qkv::inline v0 {
namespace {

int run_info(const Globals& globals) {
  const CpuFeatures& cpu = cpu_features();
  if (globals.json) {
    Json out = Json::object();
    out["version"] = version();
    out["processor"] = cpu.model;
    out["isa"] = isa_name(active_isa());
    out["isa_reason"] = active_isa_reason();
    out["threads"] = num_threads();
    out["threads_reason"] = num_threads_reason();
    print_json(out);
    return 0;
  }
  print_line(fmt::format("qkv        {}", version()));
  print_line(fmt::format("processor  {}", cpu.model));
  print_line(fmt::format("isa        {}", active_isa_reason()));
  print_line(fmt::format("threads    {}", num_threads_reason()));
  return 0;
}

}  // namespace

void add_info(CLI::App& app, Globals& globals) {
  CLI::App* verb = app.add_subcommand("info", "shows the machine and what qkv uses of it");
  verb->footer("Examples:\n  qkv info\n  QKV_MAX_ISA=avx2 qkv info --json");
  verb->callback([&globals] { globals.run = [&globals] { return run_info(globals); }; });
}

}  // namespace qkv::inline v0
