// Products with weights that stay in their stored type: GGUF's blocks, bf16, fp16, fp32.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "qkv/tensor.h"

#include "ops/activation.h"
#include "tensor/block_tensor.h"

namespace qkv::inline v0::ops {

// A weight [N, K], whose rows may come from several matrices below each other, each in its own
// type: query, key and value, or the two halves of a gated feed-forward, are then one product with
// one hand-over to the threads. Holds views; copying shares them. Immutable, so thread-safe.
class QuantizedWeight {
 public:
  QuantizedWeight() = default;
  // ShapeError unless the shape is a matrix that is not empty.
  explicit QuantizedWeight(const BlockTensor& w);
  // fp32, bf16 or fp16 with contiguous rows.
  explicit QuantizedWeight(const Tensor& w);
  // Rows of all parts below each other; ShapeError unless all have the same K.
  static QuantizedWeight stack(std::span<const QuantizedWeight> parts);

  std::int64_t rows() const { return rows_; }        // N
  std::int64_t columns() const { return columns_; }  // K
  std::size_t nbytes() const;

  // One matrix of the stack.
  struct Part {
    BlockTensor blocks;  // bytes undefined: dense
    Tensor dense;
    std::int64_t first = 0, count = 0;  // rows of the whole
  };
  const std::vector<Part>& parts() const { return parts_; }

 private:
  std::vector<Part> parts_;
  std::int64_t rows_ = 0, columns_ = 0;
};

// y = activation(x w^T + bias).  x: [T, K] fp32 (rows contiguous, any row stride), bias: [N] fp32
// or undefined; y: [T, N] fp32, or [T, N / 2] for gated activations (see ops/linear.h). Activations
// stay fp32, sums too; the weight is widened in registers or, for more than 8 rows, in pieces of at
// most 4 MB: it is never expanded as a whole. Gradient: none, a quantised weight is not trained.
// Thread-safe. Bits do not depend on the number of threads; a row's bits depend on that row and the
// weight alone, and on whether T is at most 8. Accuracy: K 2^-24 sum |x||w| for the values w that
// the blocks stand for.
Tensor quantized_linear(const Tensor& x, const QuantizedWeight& w, const Tensor& bias = {},
                        Activation activation = Activation::kNone);

// Rows of the table by id, fp32 [T, K]: an embedding. ArgumentError for ids outside [0, N).
// Gradient: none. Exact but for one rounding.
Tensor quantized_embedding(const QuantizedWeight& table, std::span<const std::int32_t> ids);

// The whole matrix as fp32, within one rounding of the definition of its blocks. Gradient: none.
Tensor dequantize(const BlockTensor& w);

}  // namespace qkv::inline v0::ops
