// Norm layers, and the residual stream that feeds them.
#pragma once

#include <string>

#include "autograd/functions.h"
#include "nn/module.h"
#include "nn/options.h"

namespace qkv::inline v0::nn {

// LayerNorm (NAME.weight, NAME.bias), RMSNorm (NAME.weight), or nothing. Neither parameter decays.
class Norm {
 public:
  Norm() = default;
  Norm(const Builder& parent, const std::string& name, std::int64_t width,
       const NormConfig& config);
  bool none() const { return !weights_.gamma.defined(); }
  Var operator()(Context& context, const Var& x) const;  // x itself if none()
  // As the ops take them: a stored w that stands for 1 + w is already that.
  autograd::NormWeights weights(Context& context) const;

 private:
  autograd::NormWeights weights_;
  Var one_;  // [C] of ones where the stored weight has a unit offset
};

// The residual stream x, with at most one branch still to be added: x + dropout(branch). The
// addition waits for the norm that reads the sum, so that both are one pass over memory; in Pre-LN
// this crosses the border of two blocks.
class ResidualStream {
 public:
  explicit ResidualStream(Var x) : sum_(std::move(x)) {}

  // Adds dropout(branch) to the stream.
  void add(Context& context, Var branch, const ops::DropoutOptions& dropout);
  // norm(stream). The stream itself stays.
  Var normed(Context& context, const Norm& norm);
  // The stream's value, [T, C].
  const Var& value(Context& context);
  // Starts over from x (Post-LN: what the norm gave).
  void restart(Var x);

 private:
  Var sum_, branch_;
  ops::DropoutOptions dropout_;
};

// Options of dropout number `which` of the running module: off unless the context trains.
ops::DropoutOptions dropout_options(const Context& context, double p, int which);

}  // namespace qkv::inline v0::nn
