// Linear layer with optional bias and fused activation.
#pragma once

#include <string>

#include "nn/weight.h"

namespace qkv::inline v0::nn {

struct LinearConfig {
  std::int64_t in = 0, out = 0;
  bool bias = true;
  Init weight_init;
  Init bias_init = Init::zeros();
};

// y = activation(x w^T + b). Parameters NAME.weight [out, in] (decayed) and NAME.bias [out] (not).
class Linear {
 public:
  Linear() = default;
  Linear(const Builder& parent, const std::string& name, const LinearConfig& config)
      : weight_(parent.child(name), "weight", {config.out, config.in}, config.weight_init) {
    if (config.bias)
      bias_ = parent.child(name).add("bias", {config.out}, config.bias_init, /*decay=*/false);
  }
  Var operator()(Context& context, const Var& x,
                 ops::Activation activation = ops::Activation::kNone) const {
    return weight_.multiply(context, x, bias_, activation);
  }

 private:
  Weight weight_;
  Var bias_;
};

}  // namespace qkv::inline v0::nn
