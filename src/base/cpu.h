// The instruction sets of this processor, and the one in use.
#pragma once

#include <string>

namespace qkv::inline v0 {

// Ordered: a later one includes the earlier ones.
enum class Isa { kGeneric, kAvx2, kAvx512 };
const char* isa_name(Isa isa);  // "generic", "avx2", "avx512"

struct CpuFeatures {
  bool avx2 = false, avx512 = false;  // as compiled for here: avx2+fma+f16c+bmi2; avx512 f,dq,bw,vl
  bool avx512_bf16 = false, avx512_fp16 = false, avx512_vnni = false, avx_vnni = false;
  bool amx_tile = false, amx_bf16 = false, amx_int8 = false;
  std::string model;  // "Intel(R) Xeon(R) Processor"
};
const CpuFeatures& cpu_features();

// The best instruction set of the machine, not above QKV_MAX_ISA (generic|avx2|avx512; anything
// else is an ArgumentError). Fixed at first use.
Isa active_isa();
std::string active_isa_reason();

}  // namespace qkv::inline v0
