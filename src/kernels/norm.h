// Passes over rows of the residual stream: norms, dropout and the sums around them.
#pragma once

#include <cstdint>

namespace qkv::inline v0::kernels {

// Which elements of a row are dropped: see RandomKey in ops/random_key.h.
struct DropoutRows {
  bool active = false;
  bool all = false;  // p = 1: every element is dropped
  std::uint64_t key = 0;
  std::uint32_t step = 0;
  std::uint32_t threshold = 0;             // an element is dropped when its number is below
  double scale = 1;                        // 1 / (1 - p)
  const std::int32_t* tokens = nullptr;    // [rows] position of each row in its sequence
  const std::uint32_t* samples = nullptr;  // [rows] sample of each row
};

// s = residual + dropout(x), or x without a residual; y = norm(s). Rows are contiguous.
// layer: y = (s - mean) rstd gamma + beta with rstd = 1 / sqrt(var + eps), var biased, by two
// passes around the mean. rms: y = s rstd gamma with rstd = 1 / sqrt(mean(s^2) + eps).
template <class T>
struct NormForward {
  bool rms;
  std::int64_t rows, width;
  double eps;
  const T* x;
  const T* residual;  // null: none
  T* sum;             // written when there is a residual
  const T* gamma;
  const T* beta;  // null: none
  T* y;
  T* mean;  // [rows]; null for rms
  T* rstd;  // [rows]
  DropoutRows dropout;
};

// dx = gradient of the norm (+ add); dgamma, dbeta: sums over the rows, in row order.
template <class T>
struct NormBackward {
  bool rms;
  std::int64_t rows, width;
  const T* dy;
  const T* x;
  const T* gamma;
  const T* mean;
  const T* rstd;
  const T* add;  // null: none
  T* dx;
  T* dgamma;  // [width]; null: not asked for
  T* dbeta;   // [width]; null: not asked for
};

template <class T>
struct DropoutForward {
  std::int64_t rows, width;
  const T* x;
  const T* residual;  // null: none
  T* y;               // residual + dropout(x)
  DropoutRows dropout;
};

template <class T>
struct NormKernels {
  void (*forward)(const NormForward<T>&);
  void (*backward)(const NormBackward<T>&);
  void (*dropout)(const DropoutForward<T>&);
};

// The implementation in use. fp32 accuracy of the SIMD ones: 1e-6 of the largest |y|.
template <class T>
const NormKernels<T>& norm_kernels();

namespace reference {
extern const NormKernels<float> kNormF32;
extern const NormKernels<double> kNormF64;
}  // namespace reference

}  // namespace qkv::inline v0::kernels
