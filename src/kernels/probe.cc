#include "kernels/probe.h"

#include "kernels/registry.h"
#include "kernels/simd_tables.h"

namespace qkv::inline v0::kernels {

QKV_SIMD_TABLE(ProbeKernels, kProbe)

namespace {
constexpr Implementation<ProbeKernels> kProbes[] = {QKV_SIMD_LIST(kProbe)};
}  // namespace

const ProbeKernels& probe_kernels() { return pick<ProbeKernels>(kProbes); }

}  // namespace qkv::inline v0::kernels
