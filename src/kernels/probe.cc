#include "kernels/probe.h"

#include "kernels/registry.h"
#include "kernels/simd_tables.h"

namespace qkv::inline v0::kernels {

QKV_SIMD_TABLE(ProbeKernels, kProbe)
#if defined(__x86_64__)
namespace amx {
extern const ProbeKernels kPairProbe;
}
namespace avx512_bf16 {
extern const ProbeKernels kPairProbe;
}
#endif

namespace {
constexpr Implementation<ProbeKernels> kProbes[] = {QKV_SIMD_LIST(kProbe)};
}  // namespace

const ProbeKernels& probe_kernels() { return pick<ProbeKernels>(kProbes); }

const ProbeKernels* bf16_probe_kernels(bool tiles) {
#if defined(__x86_64__)
  if (tiles) return active_isa() >= Isa::kAmx ? &amx::kPairProbe : nullptr;
  return active_isa() >= Isa::kAvx512Bf16 ? &avx512_bf16::kPairProbe : nullptr;
#else
  static_cast<void>(tiles);
  return nullptr;
#endif
}

}  // namespace qkv::inline v0::kernels
