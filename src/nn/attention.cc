#include "nn/attention.h"

#include "base/check.h"
#include "nn/kv_cache.h"
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

Var MultiHeadAttention::attend_cached(const Context& context, const Var& qkv,
                                      const ops::AttentionOptions& options) const {
  require<UnsupportedError>(!context.recording(qkv) && options.dropout_p == 0, "attention",
                            "expected a pass without gradients and dropout, since it has a cache");
  require<UnsupportedError>(context.capture == nullptr || !context.capture->wants_attention(),
                            "attention",
                            "expected a pass without a cache where weights are captured");
  require<ArgumentError>(config_.mask.is_causal(), "attention",
                         "expected a causal mask, since the pass has a cache");
  const RaggedLayout& layout = *context.layout;
  const std::int64_t heads = heads_.heads, kv = heads_.kv_heads, d = heads_.head_size;
  const Tensor all = qkv.value().reshape({qkv.value().dim(0), heads + 2 * kv, d});
  Tensor out;
  // As a padded batch of one, [1, N, heads, D]: no layouts to build.
  const auto batch_of_one = [](const Tensor& x) {
    return Tensor::wrap_strided(x.raw(), {1, x.dim(0), x.dim(1), x.dim(2)},
                                {0, x.stride(0), x.stride(1), 1}, x.dtype());
  };
  for (std::int64_t b = 0; b < layout.batch(); ++b) {
    const Tensor rows = all.narrow(0, layout.starts[static_cast<std::size_t>(b)], layout.length(b));
    const KvCache::Keys keys = context.cache->append(config_.layer, b, rows.narrow(1, heads, kv),
                                                     rows.narrow(1, heads + kv, kv));
    ops::AttentionInput input;
    input.q = batch_of_one(rows.narrow(1, 0, heads));
    input.k = batch_of_one(keys.k);
    input.v = batch_of_one(keys.v);
    const Tensor mixed = ops::attention(input, options).out.reshape({rows.dim(0), heads * d});
    if (layout.batch() == 1) return Var(mixed);
    if (b == 0) out = Tensor::empty({all.dim(0), heads * d}, all.dtype());
    out.narrow(0, layout.starts[static_cast<std::size_t>(b)], layout.length(b)).copy_from(mixed);
  }
  return Var(out);
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
    require<UnsupportedError>(context.cache == nullptr, "attention",
                              "expected softmax attention, since the pass has a cache");
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
    if (context.cache != nullptr) {
      mixed = attend_cached(context, qkv, options);
    } else {
      mixed = autograd::attention(context, qkv, heads_, options, context.attention_bias);
    }
  }
  if (context.capture != nullptr) context.capture->detail(context.module, "mixed", mixed.value());
  qkv = Var();  // the tape holds what the backward pass needs
  Var y = out_(context, mixed);
  if (context.capture != nullptr) context.capture->activation(context.module, y.value());
  return y;
}

}  // namespace qkv::inline v0::nn
