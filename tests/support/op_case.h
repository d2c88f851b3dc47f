// One struct per op that yields its tests: reference against every SIMD implementation, gradients
// by finite differences in fp64, and the speed case. To add an op, add a line to src/ops/op_list.cc
// and a case to op_cases.cc.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "qkv/layout.h"
#include "qkv/tensor.h"

#include "base/random.h"
#include "support/tensors.h"

namespace qkv::testing {

// What a case makes its tensors from; `extra` is the case's own (inner dimension, heads).
struct OpShape {
  std::int64_t rows = 1, width = 1, extra = 1;
};

using Tensors = std::vector<Tensor>;

struct OpCase {
  std::string op;       // a name of the op list
  std::string variant;  // "gelu", "layer norm with beta"; empty if there is one
  std::vector<OpShape> parity;
  OpShape gradient{5, 6, 4};
  OpShape speed{2048, 256, 256};
  double tolerance = 2e-6;  // fp32: max |difference| / max |reference| per output
  // Work of one forward (and of the backward, if any, as its own figure).
  std::function<double(OpShape)> flops = [](OpShape) { return 0.0; };
  std::function<double(OpShape)> bytes = [](OpShape) { return 0.0; };
  std::function<double(OpShape)> backward_bytes = [](OpShape) { return 0.0; };

  std::function<Tensors(OpShape, DType, Random&)> inputs;
  std::function<Tensors(OpShape, const Tensors&)> forward;
  // How many of the outputs are functions to be differentiated; the others serve the backward.
  int differentiable = 1;
  // From inputs, outputs and the gradients of the differentiable outputs to those of the inputs; an
  // undefined tensor for an input without gradient. May overwrite outputs.
  std::function<Tensors(OpShape, const Tensors& in, const Tensors& out, const Tensors& upstream)>
      backward;
  std::string no_gradient;  // why there is no backward

  std::string name() const { return variant.empty() ? op : op + " " + variant; }
};

// All cases. Those of attention stand in a file of their own.
const std::vector<OpCase>& op_cases();
std::vector<OpCase> attention_op_cases();

// Standard normal values.
Tensor random_normal(const Shape& shape, DType dtype, Random& random, double scale = 1);
// Sequences of 1, 2, 3, 5, 8, ... tokens, the last cut to fit: `rows` tokens in all; samples are
// numbered from 7.
RaggedLayout ragged_rows(std::int64_t rows);

}  // namespace qkv::testing
