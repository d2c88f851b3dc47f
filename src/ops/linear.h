// Products with a weight matrix, with bias and activation fused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

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

// A weight [N, K] (fp32) in the layout that products like best: made once, used by any number of
// calls and threads. Packing costs about as much as the product with 30 tokens, so it pays where
// the same weights meet short texts again and again. A copy of the values at the time of
// construction: see PackedWeightCache for weights that change.
class PackedWeight {
 public:
  explicit PackedWeight(const Tensor& w);
  std::size_t bytes() const;

 private:
  friend class PackedWeightCache;
  friend LinearResult linear(const Tensor&, const Tensor&, const Tensor&, Activation, bool,
                             const PackedWeight*);
  Tensor w_;
  std::shared_ptr<const kernels::PackedMatrix<float>> matrix_;
};

// The packed form of one weight, remade when its version (or memory) is another than last time.
// Thread-safe, as long as the weight is not written meanwhile.
class PackedWeightCache {
 public:
  std::shared_ptr<const PackedWeight> get(const Tensor& w, std::uint64_t version);

 private:
  std::mutex mutex_;
  std::shared_ptr<const PackedWeight> packed_;
  std::uint64_t version_ = 0;
};

// y = activation(x w^T + b).  x: [T, K] (rows contiguous, any row stride), w: [N, K], bias: [N] or
// undefined. Gated activations (kSwiglu, kGeglu) take N = 2F: y[:, f] = act(pre[:, f]) * pre[:, F +
// f], y: [T, F]. fp32 and fp64. Gradient: linear_backward. Bits do not depend on the number of
// threads; a row's bits depend on that row and the weights alone. Accuracy: fp32 products
// accumulate in fp32 over K (relative error <= K * 2^-24 of sum |x||w|). keep_pre: whether the
// caller needs `pre` (training). packed: made from w, or null.
LinearResult linear(const Tensor& x, const Tensor& w, const Tensor& bias,
                    Activation activation = Activation::kNone, bool keep_pre = true,
                    const PackedWeight* packed = nullptr);

struct LinearGradients {
  Tensor dx;  // [T, K]; undefined if not asked for
};

// Given dy: [T, N or F] writes dw [N, K] and dbias [N] (either may be undefined: skipped) in the
// way `into` says, and returns dx if need_dx. `pre` as returned by linear; it may be overwritten
// (it becomes the gradient before the activation).
LinearGradients linear_backward(const Tensor& dy, const Tensor& x, const Tensor& w,
                                Activation activation, const Tensor& pre, bool need_dx,
                                const Tensor& dw, const Tensor& dbias, Into into);

}  // namespace qkv::inline v0::ops
