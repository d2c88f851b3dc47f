// The instruction sets of this processor, and the one in use.
#pragma once

#include <string>

namespace qkv::inline v0 {

// Ordered: a later one includes the earlier ones. The last two add products of bf16: dot products
// in registers (VDPBF16PS), and tiles (AMX).
enum class Isa { kGeneric, kAvx2, kAvx512, kAvx512Bf16, kAmx };
const char* isa_name(Isa isa);  // "generic", "avx2", "avx512", "avx512_bf16", "amx"

struct CpuFeatures {
  bool avx2 = false, avx512 = false;  // as compiled for here: avx2+fma+f16c+bmi2; avx512 f,dq,bw,vl
  bool avx512_bf16 = false, avx512_fp16 = false, avx512_vnni = false, avx_vnni = false;
  bool amx_tile = false, amx_bf16 = false, amx_int8 = false;
  bool amx_allowed = false;  // the kernel lets this process use the tiles; asked for once
  std::string vendor;        // "GenuineIntel"
  std::string model;         // "Intel(R) Xeon(R) Processor"
};
const CpuFeatures& cpu_features();

// The best instruction set of the machine, not above QKV_MAX_ISA (one of the names above; anything
// else is an ArgumentError). Tiles that the kernel does not allow are as good as absent. Fixed at
// first use.
Isa active_isa();
std::string active_isa_reason();

}  // namespace qkv::inline v0
