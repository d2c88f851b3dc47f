#include "nn/norm.h"

#include "base/check.h"

namespace qkv::inline v0::nn {

Norm::Norm(const Builder& parent, const std::string& name, std::int64_t width,
           const NormConfig& config) {
  if (config.choice == NormChoice::kNone) return;
  const Builder builder = parent.child(name);
  weights_.kind = config.choice == NormChoice::kLayer ? ops::NormKind::kLayer : ops::NormKind::kRms;
  weights_.eps = config.eps;
  weights_.gamma = builder.add("weight", {width}, config.unit_offset ? Init::zeros() : Init::ones(),
                               /*decay=*/false);
  if (config.unit_offset) {
    const Tensor ones = Tensor::empty({width}, builder.module().dtype());
    ones.fill(1);
    one_ = Var(ones);
  }
  if (config.choice == NormChoice::kLayer && config.bias)
    weights_.beta = builder.add("bias", {width}, Init::zeros(), /*decay=*/false);
}

Var Norm::operator()(Context& context, const Var& x) const {
  return none() ? x : autograd::norm(context, x, weights(context));
}

autograd::NormWeights Norm::weights(Context& context) const {
  if (!one_.defined()) return weights_;
  autograd::NormWeights shifted = weights_;
  shifted.gamma = autograd::add(context, weights_.gamma, one_);
  return shifted;
}

void ResidualStream::add(Context& context, Var branch, const ops::DropoutOptions& dropout) {
  value(context);
  branch_ = std::move(branch);
  dropout_ = dropout;
}

Var ResidualStream::normed(Context& context, const Norm& norm) {
  if (!branch_.defined() || norm.none()) return norm(context, value(context));
  autograd::AddNorm result =
      autograd::add_norm(context, branch_, sum_, dropout_, norm.weights(context));
  sum_ = std::move(result.sum);
  branch_ = Var();
  return result.y;
}

const Var& ResidualStream::value(Context& context) {
  if (branch_.defined()) {
    sum_ = autograd::add_dropout(context, branch_, sum_, dropout_);
    branch_ = Var();
  }
  return sum_;
}

void ResidualStream::restart(Var x) {
  sum_ = std::move(x);
  branch_ = Var();
}

ops::DropoutOptions dropout_options(const Context& context, double p, int which) {
  if (!context.training || p == 0) return {};
  require<ArgumentError>(context.layout != nullptr, "dropout",
                         "expected a context with a ragged layout, got none");
  return {p, context.random_key(which), context.layout};
}

}  // namespace qkv::inline v0::nn
