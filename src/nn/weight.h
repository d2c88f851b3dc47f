// A weight matrix as a type: layers multiply with it and never look inside.
#pragma once

#include "autograd/functions.h"
#include "nn/module.h"

namespace qkv::inline v0::nn {

// Dense [N, K] in the module's dtype. Other forms (packed, quantised) take its place behind the
// same calls.
class Weight {
 public:
  Weight() = default;
  Weight(const Builder& builder, const std::string& name, const Shape& shape, const Init& init)
      : dense_(builder.add(name, shape, init, /*decay=*/true)) {}
  std::int64_t rows() const { return dense_.value().dim(0); }
  std::int64_t columns() const { return dense_.value().dim(1); }

  // activation(x w^T + bias): [T, K] -> [T, N], or [T, N / 2] for gated activations. Gradient: yes.
  Var multiply(Context& context, const Var& x, const Var& bias,
               ops::Activation activation = ops::Activation::kNone) const {
    return autograd::linear(context, x, dense_, bias, activation);
  }

 private:
  Var dense_;
};

}  // namespace qkv::inline v0::nn
