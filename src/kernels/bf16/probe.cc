// The yardstick of products of bf16; see kernels/probe.h.
#include "kernels/probe.h"

#include "kernels/simd/attention_pairs.h"
#if defined(QKV_ISA_amx)
#include "kernels/simd/attention_tiles.h"
#endif

namespace qkv::inline v0::kernels::QKV_ISA {

extern const ProbeKernels kPairProbe;

namespace {

#if defined(QKV_ISA_amx)

float multiply_add(std::int64_t rounds) {
  alignas(64) float numbers[256];
  for (float& x : numbers) x = 0x1p-60f;
  AmxUnit unit;
  unit.begin();
  unit.clear<0>();
  unit.clear<1>();
  unit.clear<2>();
  unit.clear<3>();
  unit.load<4>(numbers, 16);
  unit.load<5>(numbers, 16);
  unit.load<6>(numbers, 16);
  unit.load<7>(numbers, 16);
  for (std::int64_t round = 0; round < rounds; ++round) {
    unit.multiply<0, 4, 6>();
    unit.multiply<1, 4, 7>();
    unit.multiply<2, 5, 6>();
    unit.multiply<3, 5, 7>();
  }
  float total = 0;
  unit.store<0>(numbers, 16);
  total += numbers[0];
  unit.store<1>(numbers, 16);
  total += numbers[0];
  unit.store<2>(numbers, 16);
  total += numbers[0];
  unit.store<3>(numbers, 16);
  total += numbers[0];
  unit.end();
  return total;
}
constexpr std::int64_t kPerRound = 4 * 16 * 16 * 32;

#else

// Enough independent chains to cover the latency of a dot product on two units.
constexpr int kChains = 24;

float multiply_add(std::int64_t rounds) {
  F32 sum[kChains];
  for (int i = 0; i < kChains; ++i) sum[i] = set(static_cast<float>(i));
  const F32 left = pair_up(set(0.5f), set(0.25f)), right = pair_up(set(0x1p-20f), set(0x1p-21f));
  for (std::int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 24
    for (int i = 0; i < kChains; ++i) sum[i] = PairStep::add(left, right, sum[i]);
  }
  F32 total = sum[0];
  for (int i = 1; i < kChains; ++i) total = total + sum[i];
  return kernels::QKV_ISA::sum(total);
}
constexpr std::int64_t kPerRound = std::int64_t{kChains} * kLanes * 2;

#endif

}  // namespace

const ProbeKernels kPairProbe = {multiply_add, kPerRound, nullptr, nullptr};

}  // namespace qkv::inline v0::kernels::QKV_ISA
