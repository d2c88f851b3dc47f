#include "nn/attention.h"

#include "nn/norm.h"

namespace qkv::inline v0::nn {

MultiHeadAttention::MultiHeadAttention(const Builder& parent, const std::string& name,
                                       const AttentionConfig& config)
    : name_(name),
      config_(config),
      heads_{config.heads, config.kv_heads,
             config.head_size > 0 ? config.head_size : config.d_model / config.heads} {
  const Builder builder = parent.child(name);
  const std::int64_t c = config.d_model, inner = config.heads * heads_.head_size;
  qkv_ = Linear(builder, "qkv", {c, heads_.width(), config.bias, Init::xavier(c, heads_.width())});
  out_ = Linear(builder, "out", {inner, c, config.out_bias, Init::fan_in(inner)});
  if (config.head_norm) {
    query_norm_ = Norm(builder, "query_norm", heads_.head_size, *config.head_norm);
    key_norm_ = Norm(builder, "key_norm", heads_.head_size, *config.head_norm);
  }
}

Var MultiHeadAttention::operator()(Context& context, const Var& x) const {
  const ModuleScope scope(context, name_);
  Var qkv = qkv_(context, x);
  if (config_.head_norm) {
    qkv = autograd::head_norm(context, qkv, heads_, query_norm_.weights(context),
                              key_norm_.weights(context));
  }
  if (config_.rope) qkv = autograd::rope(context, qkv, heads_, *config_.rope);
  if (context.capture != nullptr) context.capture->detail(context.module, "qkv", qkv.value());
  Var mixed;
  if (config_.kind == AttentionKind::kLinear) {
    mixed = autograd::linear_attention(context, qkv, heads_, /*causal=*/false);
  } else {
    ops::AttentionOptions options;
    if (config_.kind == AttentionKind::kNaive) options.backend = ops::AttentionBackend::kNaive;
    if (config_.kind == AttentionKind::kFlash) options.backend = ops::AttentionBackend::kFlash;
    options.mask = config_.mask;
    if (config_.kind == AttentionKind::kWindow)
      options.mask = options.mask & Mask::window(config_.window);
    options.scale = config_.scale;
    options.softcap = config_.softcap;
    if (context.training) options.dropout_p = config_.dropout;
    options.dropout_key = context.random_key(0);
    mixed = autograd::attention(context, qkv, heads_, options);
  }
  if (context.capture != nullptr) context.capture->detail(context.module, "mixed", mixed.value());
  qkv = Var();  // the tape holds what the backward pass needs
  Var y = out_(context, mixed);
  if (context.capture != nullptr) context.capture->activation(context.module, y.value());
  return y;
}

}  // namespace qkv::inline v0::nn
