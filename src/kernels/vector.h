// Passes over contiguous vectors: sums, scaled copies, rotation, and the optimiser's.
#pragma once

#include <cstdint>

namespace qkv::inline v0::kernels {

// theta = decay theta - rate m' / (sqrt(v') inverse_root + eps) with m', v' the new moving averages
// of scale * g.
template <class T>
struct AdamWChunk {
  std::int64_t n;
  T* theta;
  T* g;
  T* m;
  T* v;
  double beta1, beta2, eps;
  double decay;         // 1 - learning rate * weight decay
  double rate;          // learning rate / (1 - beta1^t)
  double inverse_root;  // 1 / sqrt(1 - beta2^t)
  double scale;         // of the gradient
  bool zero;            // g = 0 afterwards
};

// d = scale g + decay theta; with momentum m = momentum m + d (first step: m = d by m = 0), d = m;
// theta -= rate d.
template <class T>
struct SgdChunk {
  std::int64_t n;
  T* theta;
  const T* g;
  T* m;  // null: no momentum
  double rate, momentum, decay, scale;
};

template <class T>
struct Rotation {
  const T* cosines;
  const T* sines;
  std::int64_t half, heads, head_stride;
  bool interleaved;
  double sign;
};

template <class T>
struct VectorKernels {
  void (*add)(const T* a, const T* b, T* y, std::int64_t n);       // y = a + b; y may be a or b
  void (*scale)(const T* x, T* y, std::int64_t n, double factor);  // y = factor x; y may be x
  void (*add_scaled)(const T* x, T* y, std::int64_t n, double factor);  // y += factor x
  void (*maximum)(const T* x, T* y, std::int64_t n);                    // y = max(x, y), NaN wins
  // Rotates `heads` vectors of 2 half elements, head_stride apart, by angles whose cosines and
  // sines are given. Channel i goes with i + half, `half` cosines and sines; or, interleaved, 2 i
  // with 2 i + 1: then cosines are [cos_0, cos_0, cos_1, cos_1, ...] and sines [-sin_0, sin_0,
  // -sin_1, sin_1, ...]. `sign` -1 turns back.
  void (*rotate)(T* x, const Rotation<T>& rotation);
  double (*sum_of_squares)(const T* x, std::int64_t n);
  std::int64_t (*find_non_finite)(const T* x, std::int64_t n);  // index of the first, or -1
  void (*adamw)(const AdamWChunk<T>&);
  void (*sgd)(const SgdChunk<T>&);
};

// The implementation in use. fp32 accuracy of the SIMD ones: 2 ULP of the largest term.
template <class T>
const VectorKernels<T>& vector_kernels();

namespace reference {
extern const VectorKernels<float> kVectorF32;
extern const VectorKernels<double> kVectorF64;
}  // namespace reference

}  // namespace qkv::inline v0::kernels
