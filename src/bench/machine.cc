#include "bench/machine.h"

#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "qkv/version.h"

#include "base/cpu.h"
#include "base/thread_pool.h"
#include "bench/probe.h"
#include "kernels/attention_pairs.h"
#include "text/versions.h"

namespace qkv::inline v0::bench {
namespace {

constexpr std::int64_t kProbeBytes = std::int64_t{64} << 20;

// A figure of /proc/meminfo in bytes; 0 if it is not there.
std::int64_t meminfo(const std::string& key) {
  std::ifstream file("/proc/meminfo");
  for (std::string name, unit; file >> name;) {
    std::int64_t kib = 0;
    file >> kib;
    std::getline(file, unit);
    if (name == key + ":") return kib * 1024;
  }
  return 0;
}

// The memory limit of this process's cgroup (version 2) or of a parent; 0: none.
std::int64_t cgroup_memory_limit() {
  std::ifstream own("/proc/self/cgroup");
  std::int64_t limit = 0;
  for (std::string line; std::getline(own, line);) {
    if (!line.starts_with("0::")) continue;
    std::string path = line.substr(3);
    for (;;) {
      std::ifstream file("/sys/fs/cgroup" + path + "/memory.max");
      std::int64_t bytes = 0;
      if (file >> bytes && (limit == 0 || bytes < limit)) limit = bytes;
      if (path.empty() || path == "/") break;
      path.resize(path.find_last_of('/'));
    }
  }
  return limit;
}

std::vector<std::pair<const char*, bool>> feature_list() {
  const CpuFeatures& f = cpu_features();
  return {{"avx2", f.avx2},
          {"avx512", f.avx512},
          {"avx512_bf16", f.avx512_bf16},
          {"avx512_fp16", f.avx512_fp16},
          {"avx512_vnni", f.avx512_vnni},
          {"avx_vnni", f.avx_vnni},
          {"amx_tile", f.amx_tile},
          {"amx_bf16", f.amx_bf16},
          {"amx_int8", f.amx_int8}};
}

std::string compiler() {
#if defined(__clang__)
  return "clang " __clang_version__;
#else
  return "g++ " __VERSION__;
#endif
}

Json describe_libraries() {
  Json out = Json::object();
  out["utf8proc"] = text::utf8proc_version();
  out["Unicode"] = text::unicode_version();
  out["fmt"] =
      fmt::format("{}.{}.{}", FMT_VERSION / 10000, FMT_VERSION / 100 % 100, FMT_VERSION % 100);
  out["compiler"] = compiler();
  return out;
}

// What the machine gives now, on all threads: fp32 multiply-adds in registers, and reading an array
// of kProbeBytes. Some 0.2 s.
Json measure_peaks() {
  MultiplyAddProbe multiply_add;
  BandwidthProbe read({.reads = 1}, kProbeBytes / 4);
  Json out = Json::object();
  out["gflops"] = multiply_add.best() / 1e9;
  out["read_gigabytes_per_second"] = read.best() / 1e9;
  out["read_array_bytes"] = kProbeBytes;
  return out;
}

}  // namespace

Json describe_machine(bool measure) {
  const CpuBudget budget = cpu_budget();
  Json features = Json::array();
  for (const auto& [name, present] : feature_list()) {
    if (present) features.push_back(name);
  }
  Json out = Json::object();
  out["version"] = version();
  out["processor"] = cpu_features().model;
  out["features"] = std::move(features);
  out["isa"] = isa_name(active_isa());
  out["isa_reason"] = active_isa_reason();
  out["bf16_attention"] = kernels::bf16_attention_reason();
  out["threads"] = num_threads();
  out["threads_reason"] = num_threads_reason();
  out["cores"] = budget.affinity;
  out["core_quota"] = budget.quota > 0 ? Json(budget.quota) : Json();
  out["memory_bytes"] = meminfo("MemTotal");
  out["memory_available_bytes"] = meminfo("MemAvailable");
  const std::int64_t limit = cgroup_memory_limit();
  out["memory_limit_bytes"] = limit > 0 ? Json(limit) : Json();
  out["libraries"] = describe_libraries();
  if (measure) out["peaks"] = measure_peaks();
  return out;
}

}  // namespace qkv::inline v0::bench
