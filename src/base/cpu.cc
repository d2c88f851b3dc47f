#include "base/cpu.h"

#include <cstdlib>
#include <fstream>

#if defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "base/check.h"

namespace qkv::inline v0 {
namespace {

bool has_word(const std::string& flags, const std::string& word) {
  return (" " + flags + " ").find(" " + word + " ") != std::string::npos;
}

// Tile registers are so large that a process has to ask for them. Threads and children inherit it.
bool may_use_tiles() {
#if defined(__x86_64__)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

CpuFeatures detect() {
  CpuFeatures f;
#if defined(__x86_64__)
  __builtin_cpu_init();
  f.avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("bmi2");
  f.avx512 = f.avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
#endif
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line) && !line.empty();) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::string value = colon + 2 <= line.size() ? line.substr(colon + 2) : "";
    if (line.starts_with("model name")) f.model = value;
    if (line.starts_with("vendor_id")) f.vendor = value;
    if (!line.starts_with("flags")) continue;
    f.avx512_bf16 = has_word(value, "avx512_bf16");
    f.avx512_fp16 = has_word(value, "avx512_fp16");
    f.avx512_vnni = has_word(value, "avx512_vnni");
    f.avx_vnni = has_word(value, "avx_vnni");
    f.amx_tile = has_word(value, "amx_tile");
    f.amx_bf16 = has_word(value, "amx_bf16");
    f.amx_int8 = has_word(value, "amx_int8");
  }
  f.amx_allowed = f.amx_tile && f.amx_bf16 && may_use_tiles();
  return f;
}

constexpr Isa kIsas[] = {Isa::kGeneric, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16, Isa::kAmx};

Isa best_of(const CpuFeatures& f) {
  if (!f.avx512) return f.avx2 ? Isa::kAvx2 : Isa::kGeneric;
  if (!f.avx512_bf16) return Isa::kAvx512;
  return f.amx_allowed ? Isa::kAmx : Isa::kAvx512Bf16;
}

struct Choice {
  Isa isa;
  std::string reason;
};

Choice choose() {
  const CpuFeatures& f = cpu_features();
  const Isa best = best_of(f);
  Choice choice{best, fmt::format("{}: the best this processor has", isa_name(best))};
  if (f.amx_bf16 && !f.amx_allowed)
    choice.reason += "; the system does not let this process use its AMX tiles";
  const char* text = std::getenv("QKV_MAX_ISA");
  if (text == nullptr || *text == '\0') return choice;
  for (const Isa isa : kIsas) {
    if (isa_name(isa) != std::string(text)) continue;
    if (isa >= best) return choice;
    return {isa,
            fmt::format("{}: QKV_MAX_ISA; the processor has {}", isa_name(isa), isa_name(best))};
  }
  fail<ArgumentError>(
      "cpu", "expected QKV_MAX_ISA=generic, avx2, avx512, avx512_bf16 or amx, got '{}'", text);
}

const Choice& choice() {
  static const Choice c = choose();
  return c;
}

}  // namespace

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::kAmx:
      return "amx";
    case Isa::kAvx512Bf16:
      return "avx512_bf16";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx2:
      return "avx2";
    default:
      return "generic";
  }
}

const CpuFeatures& cpu_features() {
  static const CpuFeatures f = detect();
  return f;
}

Isa active_isa() { return choice().isa; }
std::string active_isa_reason() { return choice().reason; }

}  // namespace qkv::inline v0
