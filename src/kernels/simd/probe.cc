// The yardstick loops of kernels/probe.h.
#include "kernels/probe.h"

#include "kernels/simd/vec.h"

namespace qkv::inline v0::kernels::QKV_ISA {

extern const ProbeKernels kProbe;

namespace {

// Enough independent chains to cover the latency of a multiply-add on two units.
constexpr int kChains = 12;

float multiply_add(std::int64_t rounds) {
  F32 sum[kChains];
  for (int i = 0; i < kChains; ++i) sum[i] = set(static_cast<float>(i));
  const F32 factor = set(0.999f), term = set(0.001f);
  for (std::int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) sum[i] = fma(sum[i], factor, term);
  }
  F32 total = sum[0];
  for (int i = 1; i < kChains; ++i) total = total + sum[i];
  return kernels::QKV_ISA::sum(total);
}

float exponential(const float* x, std::int64_t n) {
  F32 sum[4] = {zero(), zero(), zero(), zero()};
  for (std::int64_t i = 0; i < n; i += 4 * kLanes) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) sum[j] = sum[j] + exp(load(x + i + j * kLanes));
  }
  return kernels::QKV_ISA::sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

template <int kInputs>
QKV_INLINE F32 largest(const float* const* inputs, std::int64_t i) {
  F32 value = load(inputs[0] + i);
#pragma GCC unroll 4
  for (int r = 1; r < kInputs; ++r) value = max(value, load(inputs[r] + i));
  return value;
}

template <int kInputs>
QKV_INLINE float pass_over(const float* const* inputs, float* const* outputs, int count,
                           std::int64_t n) {
  F32 seen[4] = {zero(), zero(), zero(), zero()};
  for (std::int64_t i = 0; i < n; i += 4 * kLanes) {
    F32 value[4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) value[j] = largest<kInputs>(inputs, i + j * kLanes);
    for (int w = 0; w < count; ++w) {
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) store(outputs[w] + i + j * kLanes, value[j]);
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) seen[j] = max(seen[j], value[j]);
  }
  return hmax(max(max(seen[0], seen[1]), max(seen[2], seen[3])));
}

void fill(float* const* outputs, int count, std::int64_t n) {
  const F32 one = set(1.0f);
  for (std::int64_t i = 0; i < n; i += kLanes) {
    for (int w = 0; w < count; ++w) store(outputs[w] + i, one);
  }
}

float pass(const ProbeArrays& a) {
  const float* inputs[kMaxProbeArrays] = {};
  float* outputs[2 * kMaxProbeArrays] = {};
  int in = 0, out = 0;
  for (int i = 0; i < a.reads; ++i) inputs[in++] = a.read[i];
  for (int i = 0; i < a.updates; ++i) {
    inputs[in++] = a.update[i];
    outputs[out++] = a.update[i];
  }
  for (int i = 0; i < a.writes; ++i) outputs[out++] = a.write[i];
  switch (in) {
    case 0:
      fill(outputs, out, a.n);
      return 1;
    case 1:
      return pass_over<1>(inputs, outputs, out, a.n);
    case 2:
      return pass_over<2>(inputs, outputs, out, a.n);
    case 3:
      return pass_over<3>(inputs, outputs, out, a.n);
    default:
      return pass_over<4>(inputs, outputs, out, a.n);
  }
}

}  // namespace

const ProbeKernels kProbe = {multiply_add, std::int64_t{kChains} * kLanes, exponential, pass};

}  // namespace qkv::inline v0::kernels::QKV_ISA
