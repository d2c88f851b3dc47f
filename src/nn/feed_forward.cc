#include "nn/feed_forward.h"

#include "nn/norm.h"

namespace qkv::inline v0::nn {

FeedForward::FeedForward(const Builder& parent, const std::string& name,
                         const FeedForwardConfig& config)
    : name_(name), config_(config) {
  const Builder builder = parent.child(name);
  const std::int64_t c = config.d_model, f = config.d_ff,
                     rows = ops::is_gated(config.activation) ? 2 * f : f;
  up_ = Linear(builder, "up", {c, rows, config.bias, Init::fan_in(c), Init::fan_in(c)});
  down_ = Linear(builder, "down", {f, c, config.bias, Init::fan_in(f), Init::fan_in(f)});
}

Var FeedForward::operator()(Context& context, const Var& x) const {
  const ModuleScope scope(context, name_);
  Var hidden = up_(context, x, config_.activation);
  if (context.capture != nullptr) context.capture->detail(context.module, "hidden", hidden.value());
  hidden = autograd::dropout(context, hidden, dropout_options(context, config_.dropout, 0));
  Var y = down_(context, hidden);
  if (context.capture != nullptr) context.capture->activation(context.module, y.value());
  return y;
}

}  // namespace qkv::inline v0::nn
