#include "kernels/simd/probe.h"

#include "kernels/simd/vec.h"

namespace qkv::inline v0::kernels::QKV_ISA {
extern const VectorProbe kVectorProbe;
namespace {

template <class F>
QKV_INLINE void map(const float* x, float* y, std::int64_t n, F f) {
  for (std::int64_t i = 0; i < n; i += kLanes) store(y + i, f(load(x + i)));
}

void run_exp(const float* x, float* y, std::int64_t n) {
  map(x, y, n, [](F32 a) QKV_BODY { return exp(a); });
}
void run_exp2(const float* x, float* y, std::int64_t n) {
  map(x, y, n, [](F32 a) QKV_BODY { return exp2(a); });
}
void run_exp2_short(const float* x, float* y, std::int64_t n) {
  map(x, y, n, [](F32 a) QKV_BODY { return exp2_short(a); });
}
void run_sigmoid(const float* x, float* y, std::int64_t n) {
  map(x, y, n, [](F32 a) QKV_BODY { return sigmoid(a).value; });
}
void run_normal_tail(const float* x, float* y, std::int64_t n) {
  map(x, y, n, [](F32 a) QKV_BODY { return normal_tail(a).tail; });
}
void run_tanh(const float* x, float* y, std::int64_t n) {
  map(x, y, n, [](F32 a) QKV_BODY { return tanh_value(a); });
}
void run_round(const float* x, float* y, std::int64_t n) {
  map(x, y, n, [](F32 a) QKV_BODY { return round(a); });
}

void run_dropout_keep(std::uint64_t key, std::uint32_t block, std::uint32_t token,
                      std::uint32_t sample, std::uint32_t step, std::uint32_t threshold,
                      std::uint64_t* kept) {
  const PhiloxKeys keys = philox_keys(key);
  dropout_keep<2>({keys, token, sample, step, threshold}, block, kept);
}

void reduce(const float* x, std::int64_t n, float* total, float* largest, float* smallest) {
  const Mask m = first_lanes(n);
  const F32 a = load(x, m);
  *total = sum(a);
  *largest = hmax(select(m, a, set(-__builtin_inff())));
  *smallest = hmin(select(m, a, set(__builtin_inff())));
}

void copy_some(const float* x, float* y, std::int64_t n) {
  const Mask m = first_lanes(n);
  store(y, load(x, m), m);
}

void transpose(const float* x, float* y) {
  F32 rows[4];
  for (int i = 0; i < 4; ++i) rows[i] = load(x + i * kLanes);
  transpose_quads(rows);
  for (int q = 0; q < kLanes / 4; ++q)
    for (int i = 0; i < 4; ++i) store_quad(y + 4 * (4 * q + i), rows[i], q);
}

}  // namespace

const VectorProbe kVectorProbe = {kLanes,           run_exp,         run_exp2,  run_exp2_short,
                                  run_sigmoid,      run_normal_tail, run_tanh,  run_round,
                                  run_dropout_keep, reduce,          copy_some, transpose};

}  // namespace qkv::inline v0::kernels::QKV_ISA
