#include "nn/block.h"

namespace qkv::inline v0::nn {

Block::Block(const Builder& parent, const std::string& name, const BlockConfig& config)
    : name_(name), placement_(config.placement), dropout_(config.hidden_dropout) {
  const Builder builder = parent.child(name);
  const std::int64_t c = config.attention.d_model;
  const auto norms = [&](const std::string& sublayer) {
    Sublayer s;
    s.norm = Norm(builder, sublayer + "_norm", c, config.norm);
    if (placement_ == NormPlacement::kSandwich)
      s.post_norm = Norm(builder, sublayer + "_post_norm", c, config.norm);
    return s;
  };
  attention_.emplace(builder, "attention", config.attention);
  if (config.attention_norm) attention_norms_ = norms("attention");
  if (config.feed_forward.d_ff > 0) {
    feed_forward_.emplace(builder, "feed_forward", config.feed_forward);
    feed_forward_norms_ = norms("feed_forward");
  }
}

template <class F>
void Block::run(Context& context, ResidualStream& stream, const Sublayer& sublayer, const F& f,
                int which) const {
  const ops::DropoutOptions dropout = dropout_options(context, dropout_, which);
  switch (placement_) {
    case NormPlacement::kPre:
      stream.add(context, f(context, stream.normed(context, sublayer.norm)), dropout);
      break;
    case NormPlacement::kPost:
      stream.add(context, f(context, stream.value(context)), dropout);
      stream.restart(stream.normed(context, sublayer.norm));
      break;
    case NormPlacement::kSandwich:
      stream.add(context,
                 sublayer.post_norm(context, f(context, stream.normed(context, sublayer.norm))),
                 dropout);
      break;
  }
}

void Block::operator()(Context& context, ResidualStream& stream) const {
  const ModuleScope scope(context, name_);
  run(context, stream, attention_norms_, *attention_, 0);
  if (feed_forward_) run(context, stream, feed_forward_norms_, *feed_forward_, 1);
  if (context.capture != nullptr)
    context.capture->activation(context.module, stream.value(context).value());
}

}  // namespace qkv::inline v0::nn
