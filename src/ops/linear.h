// Products with a weight matrix, with bias and activation fused.
#pragma once

#include "qkv/tensor.h"

#include "kernels/packed_matrix.h"
#include "ops/activation.h"

namespace qkv::inline v0::ops {

// Whether a gradient is written or added to what stands there (micro-batches).
enum class Into { kOverwrite, kAdd };

struct LinearResult {
  Tensor y;    // [T, N]
  Tensor pre;  // [T, N] before the activation; undefined for kNone (and for gated kinds it holds
               // [T, 2F])
};

// y = activation(x w^T + b).  x: [T, K] (rows contiguous, any row stride), w: [N, K], bias: [N] or
// undefined. Gated activations (kSwiglu, kGeglu, kGegluTanh) take N = 2F: y[:, f] = act(pre[:, f])
// * pre[:, F + f], y: [T, F]. fp32 and fp64. Gradient: linear_backward. Bits do not depend on the
// number of threads; a row's bits depend on that row and the weights alone. Accuracy: fp32 products
// accumulate in fp32 over K (relative error <= K * 2^-24 of sum |x||w|). keep_pre: whether the
// caller needs `pre` (training).
LinearResult linear(const Tensor& x, const Tensor& w, const Tensor& bias,
                    Activation activation = Activation::kNone, bool keep_pre = true);

// A weight [N, K], fp32, packed once for any number of products and threads. For weights that do
// not change: it keeps a copy of the values, as large as they are.
class PackedWeight {
 public:
  explicit PackedWeight(const Tensor& w);
  const Tensor& value() const { return w_; }

 private:
  friend LinearResult linear(const Tensor& x, const PackedWeight& w, const Tensor& bias,
                             Activation activation);
  Tensor w_;
  kernels::PackedMatrix<float> matrix_;
};
// As above, and with the same bits, without `pre`: a product with few tokens spends up to half of
// its time on packing.
LinearResult linear(const Tensor& x, const PackedWeight& w, const Tensor& bias,
                    Activation activation = Activation::kNone);

// Where the gradients of the weights go; an undefined tensor is skipped.
struct LinearSlots {
  Tensor dw, dbias;  // [N, K], [N]
  Into into = Into::kOverwrite;
};

struct LinearGradients {
  Tensor dx;  // [T, K]; undefined if not asked for
};

// Given dy: [T, N or F] writes dw and dbias where `slots` says, and returns dx if need_dx. `pre` as
// returned by linear; it may be overwritten (it becomes the gradient before the activation).
LinearGradients linear_backward(const Tensor& dy, const Tensor& x, const Tensor& w,
                                Activation activation, const Tensor& pre, bool need_dx,
                                const LinearSlots& slots);

}  // namespace qkv::inline v0::ops
