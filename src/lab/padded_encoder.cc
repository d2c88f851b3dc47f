#include "lab/padded_encoder.h"

#include <algorithm>
#include <cstring>
#include <string>

#include <fmt/format.h>

#include "autograd/functions.h"
#include "base/check.h"
#include "nn/norm.h"

namespace qkv::inline v0::lab {

namespace {

constexpr const char* kWhere = "padded encoder";

// The rows `rows` of x: [R, C] -> [T, C]. Gradient: zero in the others.
Var take_rows(Context& context, const Var& x, const std::vector<std::int32_t>& rows) {
  const std::int64_t width = x.value().dim(1);
  const std::size_t bytes = static_cast<std::size_t>(width) * sizeof(float);
  const bool record = context.recording(x);
  const Tensor taken = Tensor::empty({static_cast<std::int64_t>(rows.size()), width});
  for (std::size_t t = 0; t < rows.size(); ++t) {
    std::memcpy(taken.data<float>() + static_cast<std::int64_t>(t) * width,
                x.value().data<float>() + rows[t] * width, bytes);
  }
  Var y(taken, record);
  if (record) {
    context.tape->record(
        "take_rows", y,
        [rows, width, bytes, all = x.value().shape(), gx = x.gradient()](const Tensor& dy) {
          const Tensor dx = Tensor::zeros(all);
          for (std::size_t t = 0; t < rows.size(); ++t) {
            std::memcpy(dx.data<float>() + rows[t] * width,
                        dy.data<float>() + static_cast<std::int64_t>(t) * width, bytes);
          }
          gx.accumulate(dx);
        });
  }
  return y;
}

// Sets the key part of every padded row to zero, so that its score is exactly 0 whatever the query.
void clear_padded_keys(const Tensor& qkv, const PaddedBatch& batch,
                       const autograd::HeadLayout& heads) {
  const std::int64_t width = heads.width(), start = heads.heads * heads.head_size;
  const std::size_t bytes =
      static_cast<std::size_t>(heads.kv_heads * heads.head_size) * sizeof(float);
  for (std::int64_t b = 0; b < batch.layout.batch(); ++b) {
    const auto i = static_cast<std::size_t>(b);
    for (std::int64_t row = batch.layout.starts[i] + batch.lengths[i];
         row < batch.layout.starts[i + 1]; ++row)
      std::memset(qkv.data<float>() + row * width + start, 0, bytes);
  }
}

// qkv with padded keys cleared: their scores are constants, so no gradient passes.
Var without_padded_keys(Context& context, const Var& qkv, const PaddedBatch& batch,
                        const autograd::HeadLayout& heads) {
  const bool record = context.recording(qkv);
  Var y(qkv.value().clone(), record);
  clear_padded_keys(y.value(), batch, heads);
  if (record) {
    context.tape->record("clear_padded_keys", y,
                         [&batch, heads, gx = qkv.gradient()](const Tensor& dy) {
                           const Tensor dx = dy.clone();
                           clear_padded_keys(dx, batch, heads);
                           gx.accumulate(dx);
                         });
  }
  return y;
}

Mask padding_mask(const PaddedBatch& batch, double fill) {
  if (std::isinf(fill)) return Mask::lengths(batch.lengths);
  if (fill == 0) return {};
  const std::int64_t n = batch.layout.length(0), count = batch.layout.batch();
  const Tensor bias = Tensor::zeros({count, 1, 1, n});
  for (std::int64_t b = 0; b < count; ++b) {
    for (std::int64_t j = batch.lengths[static_cast<std::size_t>(b)]; j < n; ++j)
      bias.data<float>()[b * n + j] = static_cast<float>(fill);
  }
  return Mask::additive(bias);
}

// Sets the layout of a context while it lives.
class LayoutScope {
 public:
  LayoutScope(Context& context, const RaggedLayout& layout)
      : context_(context), previous_(context.layout) {
    context_.layout = &layout;
  }
  ~LayoutScope() { context_.layout = previous_; }
  LayoutScope(const LayoutScope&) = delete;
  LayoutScope& operator=(const LayoutScope&) = delete;

 private:
  Context& context_;
  const RaggedLayout* previous_;
};

}  // namespace

PaddedBatch pad_batch(const std::vector<const Sample*>& samples, std::int32_t pad_id) {
  PaddedBatch batch;
  std::int64_t longest = 0;
  for (const Sample* s : samples) {
    batch.lengths.push_back(static_cast<std::int64_t>(s->ids.size()));
    longest = std::max(longest, batch.lengths.back());
  }
  const std::vector<std::int64_t> padded(samples.size(), longest);
  batch.layout = RaggedLayout::from_lengths(padded);
  batch.packed = RaggedLayout::from_lengths(batch.lengths);
  batch.ids.assign(samples.size() * static_cast<std::size_t>(longest), pad_id);
  for (std::size_t b = 0; b < samples.size(); ++b) {
    const std::size_t start = b * static_cast<std::size_t>(longest);
    std::copy(samples[b]->ids.begin(), samples[b]->ids.end(),
              batch.ids.begin() + static_cast<std::ptrdiff_t>(start));
    for (std::size_t t = 0; t < samples[b]->ids.size(); ++t)
      batch.real_rows.push_back(static_cast<std::int32_t>(start + t));
    batch.layout.samples[b] = batch.packed.samples[b] = samples[b]->index;
  }
  return batch;
}

PaddedEncoder::PaddedEncoder(const EncoderClassifier& model) : model_(model) {
  const EncoderConfig& c = model.config();
  const bool plain = c.norm_placement == NormPlacement::kPre && c.norm != NormChoice::kNone &&
                     c.d_ff > 0 && !c.embedding_norm && !c.pooler &&
                     (c.positions == PositionKind::kLearned || c.positions == PositionKind::kRope);
  require<UnsupportedError>(plain, kWhere,
                            "expected a Pre-LN model with learned or rotary positions, got {} "
                            "norms and {} positions; give another --model",
                            norm_placement_name(c.norm_placement), position_kind_name(c.positions));
}

double PaddedEncoder::right_scale() const {
  return 1 / std::sqrt(static_cast<double>(model_.config().head_size()));
}

Var PaddedEncoder::parameter(const std::string& name) const {
  const nn::Parameter* p = model_.module().find(name);
  return p == nullptr ? Var() : p->var;  // biases may be absent
}

Var PaddedEncoder::norm(Context& context, const std::string& name, const Var& x) const {
  const EncoderConfig& c = model_.config();
  return autograd::norm(context, x,
                        {c.norm == NormChoice::kLayer ? ops::NormKind::kLayer : ops::NormKind::kRms,
                         parameter(name + ".weight"), parameter(name + ".bias"), c.norm_eps});
}

Var PaddedEncoder::embed(Context& context, const PaddedBatch& batch) const {
  const ModuleScope scope(context, "embeddings");
  Var x = autograd::embedding(context, batch.ids, parameter("embeddings.token.weight"), 1,
                              "token embedding");
  if (model_.config().positions == PositionKind::kLearned) {
    x = autograd::add(
        context, x,
        autograd::embedding(context, batch.layout.positions,
                            parameter("embeddings.position.weight"), 1, "position embedding"));
  }
  return autograd::dropout(context, x,
                           nn::dropout_options(context, model_.config().embedding_dropout, 0));
}

Var PaddedEncoder::attend(Context& context, const PaddedBatch& batch,
                          const PaddedAttention& attention, const std::string& layer,
                          const Var& x) const {
  const ModuleScope scope(context, "attention");
  const EncoderConfig& c = model_.config();
  const autograd::HeadLayout heads{c.num_heads, c.kv_heads(), c.head_size()};
  Var qkv = autograd::linear(context, x, parameter(layer + ".attention.qkv.weight"),
                             parameter(layer + ".attention.qkv.bias"));
  if (c.positions == PositionKind::kRope) {
    ops::RopeOptions rope;
    rope.base = c.rope_base;
    qkv = autograd::rope(context, qkv, heads, rope);
  }
  if (!std::isinf(attention.mask_fill)) qkv = without_padded_keys(context, qkv, batch, heads);
  ops::AttentionOptions options;
  options.scale = attention.attention_scale;
  options.mask = padding_mask(batch, attention.mask_fill);
  if (context.training) options.dropout_p = c.attention_dropout;
  options.dropout_key = context.random_key(0);
  return autograd::linear(context, autograd::attention(context, qkv, heads, options),
                          parameter(layer + ".attention.out.weight"),
                          parameter(layer + ".attention.out.bias"));
}

Var PaddedEncoder::feed_forward(Context& context, const std::string& layer, const Var& x) const {
  const ModuleScope scope(context, "feed_forward");
  const EncoderConfig& c = model_.config();
  Var y = autograd::linear(context, x, parameter(layer + ".feed_forward.up.weight"),
                           parameter(layer + ".feed_forward.up.bias"), c.activation);
  y = autograd::dropout(context, y, nn::dropout_options(context, c.activation_dropout, 0));
  return autograd::linear(context, y, parameter(layer + ".feed_forward.down.weight"),
                          parameter(layer + ".feed_forward.down.bias"));
}

Var PaddedEncoder::forward(Context& context, const PaddedBatch& batch,
                           const PaddedAttention& attention) const {
  const EncoderConfig& c = model_.config();
  Var x;
  {
    const LayoutScope padded(context, batch.layout);
    x = embed(context, batch);
    for (std::int64_t i = 0; i < c.num_layers; ++i) {
      const std::string layer = fmt::format("encoder.layers.{}", i);
      const ModuleScope scope(context, layer);
      const Var attended =
          attend(context, batch, attention, layer, norm(context, layer + ".attention_norm", x));
      x = autograd::add_dropout(context, attended, x,
                                nn::dropout_options(context, c.hidden_dropout, 0));
      const Var fed = feed_forward(context, layer, norm(context, layer + ".feed_forward_norm", x));
      x = autograd::add_dropout(context, fed, x, nn::dropout_options(context, c.hidden_dropout, 1));
    }
    x = norm(context, "encoder.norm", x);
  }
  const LayoutScope packed(context, batch.packed);
  x = autograd::pool(context, take_rows(context, x, batch.real_rows), c.pooling);
  return autograd::linear(context, x, parameter("classifier.weight"), parameter("classifier.bias"));
}

}  // namespace qkv::inline v0::lab
