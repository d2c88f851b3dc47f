#include "kernels/attention_pairs.h"

#include <atomic>

#include <fmt/format.h>

#include "base/cpu.h"
#include "kernels/attention_decode.h"

namespace qkv::inline v0::kernels {

namespace {

std::atomic<const PairTableScope*> current_scope{nullptr};

// The problem without operands of fp32.
AttentionProblem<float> with_narrow(const AttentionProblem<BFloat16>& p,
                                    const NarrowOperands& narrow) {
  AttentionProblem<float> made;
  made.queries = p.queries;
  made.keys = p.keys;
  made.batch = p.batch;
  made.heads = p.heads;
  made.kv_heads = p.kv_heads;
  made.head_size = p.head_size;
  made.value_size = p.value_size;
  made.scale = p.scale;
  made.softcap = p.softcap;
  made.mask = p.mask;
  made.dropout = p.dropout;
  made.lse = p.lse;
  made.narrow = &narrow;
  return made;
}

}  // namespace

void pairs_forward(const FlashTable& pairs, const FlashTable& wide,
                   const AttentionProblem<BFloat16>& p) {
  decode_forward(wide, p);
  const NarrowOperands narrow = {p.q, p.k, p.v, {}, p.out};
  flash_forward(pairs, with_narrow(p, narrow));
}

std::string dot_product_refusal() {
  const std::string& vendor = cpu_features().vendor;
  if (vendor == "AuthenticAMD") return "";
  return fmt::format(
      "dot products of bf16 are the choice on AMD alone; on processors of {} fp32 is as fast or "
      "faster",
      vendor.empty() ? "another vendor" : vendor);
}

std::string bf16_attention_reason() {
  const Isa isa = active_isa();
  if (isa >= Isa::kAmx) return "amx: tiles of bf16";
  if (isa < Isa::kAvx512Bf16)
    return fmt::format("{}: widened to fp32, there are no products of bf16", isa_name(isa));
  const std::string refusal = dot_product_refusal();
  if (refusal.empty()) return "avx512_bf16: dot products of bf16";
  return fmt::format("{}: widened to fp32; {}", isa_name(Isa::kAvx512), refusal);
}

PairTableScope::PairTableScope(const FlashTable& pairs, const FlashTable& wide)
    : pairs_(pairs), wide_(wide), previous_(current()) {
  current_scope.store(this);
}
PairTableScope::~PairTableScope() { current_scope.store(previous_); }
const PairTableScope* PairTableScope::current() { return current_scope.load(); }

}  // namespace qkv::inline v0::kernels
