// Softmax over rows, and the cross-entropy loss.
#pragma once

#include <cstdint>
#include <span>

#include "qkv/tensor.h"

namespace qkv::inline v0::ops {

// y = exp(x - max) / sum over the last dimension. x: [T, V]. -inf entries get exactly 0; a row of
// -inf only gives zeros. fp32, fp64. Gradient: softmax_backward.
Tensor softmax(const Tensor& x);
Tensor softmax_backward(const Tensor& dy, const Tensor& y);

struct CrossEntropyOptions {
  double label_smoothing = 0;  // mass eps / V on every class, as PyTorch
  std::int32_t ignore_index = -100;
};
struct CrossEntropyResult {
  double loss_sum = 0;       // sum over counted rows, in double
  std::int64_t counted = 0;  // rows whose target is not ignored
  std::int64_t correct =
      0;           // counted rows whose largest logit (lowest index on ties) is the target
  Tensor dlogits;  // [T, V]: gradient of loss_sum; 0 in ignored rows. Undefined unless asked for
};
// loss = -sum_v q_v log softmax(logits)_v with q = (1 - eps) one_hot + eps / V. logits: [T, V]
// fp32, fp64; targets: T values in [0, V) or ignore_index, else ArgumentError naming row and value.
// All ignored: loss 0, gradients 0.
CrossEntropyResult cross_entropy(const Tensor& logits, std::span<const std::int32_t> targets,
                                 const CrossEntropyOptions& options, bool need_gradient);

}  // namespace qkv::inline v0::ops
