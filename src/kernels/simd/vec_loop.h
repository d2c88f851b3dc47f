// Loops over vectors: the body is written once, for full vectors and for the masked tail.
#pragma once

#include <cstdint>

namespace qkv::inline v0::kernels::QKV_ISA {

struct FullLanes {
  QKV_INLINE F32 load(const float* p) const { return kernels::QKV_ISA::load(p); }
  QKV_INLINE void store(float* p, F32 a) const { kernels::QKV_ISA::store(p, a); }
  QKV_INLINE F32 only(F32 a) const { return a; }  // zero in the lanes that are not there
};
struct SomeLanes {
  Mask mask;
  QKV_INLINE F32 load(const float* p) const { return kernels::QKV_ISA::load(p, mask); }
  QKV_INLINE void store(float* p, F32 a) const { kernels::QKV_ISA::store(p, a, mask); }
  QKV_INLINE F32 only(F32 a) const { return keep(mask, a); }
};

// Calls body(i, lanes) for i = 0, kLanes, ... below n. Mark the body QKV_BODY.
template <class Body>
QKV_INLINE void for_lanes(std::int64_t n, Body body) {
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) body(i, FullLanes{});
  if (i < n) body(i, SomeLanes{first_lanes(n - i)});
}

// The sum over all lanes; body(i, lanes, sum) adds to `sum`. Four sums, so that the additions of
// one do not wait for each other.
template <class Body>
QKV_INLINE F32 sum_lanes(std::int64_t n, Body body) {
  F32 sums[4] = {zero(), zero(), zero(), zero()};
  std::int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    body(i, FullLanes{}, sums[0]);
    body(i + kLanes, FullLanes{}, sums[1]);
    body(i + 2 * kLanes, FullLanes{}, sums[2]);
    body(i + 3 * kLanes, FullLanes{}, sums[3]);
  }
  for (; i + kLanes <= n; i += kLanes) body(i, FullLanes{}, sums[0]);
  if (i < n) body(i, SomeLanes{first_lanes(n - i)}, sums[1]);
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// Brings the line of p[j] into the first-level cache, j a multiple of kLanes. Between the loads of
// a pass with arithmetic lie so many instructions that few are under way at a time; with this,
// passes over memory come close to its bandwidth. Nothing breaks where there is no memory.
QKV_INLINE void fetch(const float* p, std::int64_t j) {
  if (kLanes >= 16 || j % 16 == 0) __builtin_prefetch(p + j);
}
// How far ahead, for rows `stride` apart: whole rows, of at least 2 KiB.
QKV_INLINE std::int64_t fetch_ahead(std::int64_t stride) {
  return stride < 1 ? 512 : (511 + stride) / stride * stride;
}

}  // namespace qkv::inline v0::kernels::QKV_ISA

// Attribute of a lambda that must be part of the loop around it.
#define QKV_BODY __attribute__((always_inline))
