// Gradient checking: the tape's gradients against central differences, in double precision.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "autograd/context.h"
#include "autograd/var.h"
#include "base/function_ref.h"

namespace qkv::inline v0::autograd {

struct NamedVar {
  std::string name;
  Var var;  // fp64 with requires_grad
};

struct GradcheckOptions {
  double step = 1e-5;                // each checked element moves by +- step
  std::int64_t max_per_tensor = 24;  // elements checked in each tensor, evenly spread
  std::uint64_t seed = 1;  // of the fixed random projection that makes any output a scalar
};

struct GradcheckReport {
  double worst = 0;  // largest over tensors of max |difference| / max(max |numeric gradient|, 1e-3)
  std::string where;  // "name[index]: expected ..., got ..." of the worst
  std::int64_t checked = 0;
};

// f(context) computes an fp64 output from the inputs with whatever ops it likes; it is called many
// times and must give the same output for the same inputs (dropout keys fixed). L = sum(w * output)
// with fixed random w; the gradient of L from one backward pass is compared with (L(x + step) - L(x
// - step)) / (2 step) for each checked element. The inputs are changed in place and restored.
// ArgumentError unless the inputs are contiguous fp64 and require gradients.
GradcheckReport check_gradients(const std::vector<NamedVar>& inputs, FunctionRef<Var(Context&)> f,
                                const GradcheckOptions& options = {});

}  // namespace qkv::inline v0::autograd
