// Softmax over rows and the cross-entropy loss.
#pragma once

#include <cstdint>

namespace qkv::inline v0::kernels {

// Sums over the counted rows.
struct CrossEntropySums {
  double loss = 0;
  std::int64_t counted = 0, correct = 0;
};

// loss = -sum_v q_v log softmax(logits)_v, q = (1 - smoothing) one_hot + smoothing / width. Rows
// are contiguous. Targets are checked by the caller.
template <class T>
struct CrossEntropyRows {
  std::int64_t rows, width;
  const T* logits;
  const std::int32_t* targets;
  double smoothing;
  std::int32_t ignore_index;
  T* dlogits;  // gradient of the loss sum, zeros in ignored rows; null: not asked for
};

template <class T>
struct SoftmaxKernels {
  // y = exp(x - max) / sum per row; a row of -inf gives zeros. y may be x.
  void (*forward)(const T* x, T* y, std::int64_t rows, std::int64_t width);
  // dx = y (dy - sum(dy y)).
  void (*backward)(const T* dy, const T* y, T* dx, std::int64_t rows, std::int64_t width);
  CrossEntropySums (*cross_entropy)(const CrossEntropyRows<T>&);
};

// The implementation in use. fp32 accuracy of the SIMD ones: 4e-7 of the row's largest result.
template <class T>
const SoftmaxKernels<T>& softmax_kernels();

namespace reference {
extern const SoftmaxKernels<float> kSoftmaxF32;
extern const SoftmaxKernels<double> kSoftmaxF64;
}  // namespace reference

}  // namespace qkv::inline v0::kernels
