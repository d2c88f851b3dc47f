#include "autograd/functions.h"

#include <memory>
#include <vector>

#include "base/check.h"
#include "ops/activation.h"
#include "ops/embedding.h"
#include "ops/quantized.h"

namespace qkv::inline v0::autograd {
namespace {

using ops::Into;

// Value of an optional Var.
Tensor value_or_none(const Var& v) { return v.defined() ? v.value() : Tensor(); }
Gradient gradient_or_none(const Var& v) { return v.defined() ? v.gradient() : Gradient(); }

template <class... Vars>
bool any_recorded(const Context& context, const Vars&... vars) {
  return context.tape != nullptr && (vars.requires_grad() || ...);
}

// Where an op writes the gradients of a weight and its bias, with one way for both.
struct WeightSlots {
  Tensor w, b;
  Into into = Into::kOverwrite;
};
WeightSlots weight_slots(const Gradient& w, const Gradient& b) {
  WeightSlots slots;
  Into into_b = Into::kOverwrite;
  if (w.wanted()) std::tie(slots.w, slots.into) = w.slot();
  if (b.wanted()) std::tie(slots.b, into_b) = b.slot();
  if (!w.wanted()) {
    slots.into = into_b;
  } else if (b.wanted() && slots.into != into_b) {  // one of them is shared with another layer
    (into_b == Into::kOverwrite ? slots.b : slots.w).fill(0);
    slots.into = Into::kAdd;
  }
  return slots;
}

const RaggedLayout& layout_of(const Context& context, const char* where, std::int64_t rows) {
  require<ArgumentError>(context.layout != nullptr, where,
                         "expected a context with a ragged layout, got none; set Context::layout");
  require<ShapeError>(context.layout->tokens() == rows, where,
                      "expected {} rows, one for each token of the layout, got {}",
                      context.layout->tokens(), rows);
  return *context.layout;
}

// Views of queries, keys and values in one projection.
struct Heads {
  Tensor q, k, v;
};
Heads split_heads(const Tensor& qkv, const HeadLayout& h) {
  const Tensor all = qkv.reshape({qkv.dim(0), h.heads + 2 * h.kv_heads, h.head_size});
  return {all.narrow(1, 0, h.heads), all.narrow(1, h.heads, h.kv_heads),
          all.narrow(1, h.heads + h.kv_heads, h.kv_heads)};
}
void check_heads(const char* where, const Tensor& qkv, const HeadLayout& h) {
  require<ShapeError>(
      qkv.rank() == 2 && qkv.dim(1) == h.width(), where,
      "expected a projection [T, {}] ({} query heads, {} key/value heads of size {}), got {}",
      h.width(), h.heads, h.kv_heads, h.head_size, qkv.shape().str());
}

ops::AttentionInput attention_input(const Heads& heads, const RaggedLayout& layout) {
  return {heads.q, heads.k, heads.v, &layout, &layout, false};
}

}  // namespace

namespace {

void multiply(const Tensor& x, double factor) {
  auto* values = x.data<float>();
  for (std::int64_t i = 0; i < x.numel(); ++i) values[i] *= static_cast<float>(factor);
}

void require_no_gradient(bool recording, const char* op) {
  require<UnsupportedError>(!recording, op,
                            "expected no gradients, since the weight is kept in its stored type; "
                            "load the model for training to get them");
}

}  // namespace

Var linear(Context& context, const Var& x, const Var& w, const Var& bias,
           ops::Activation activation) {
  const bool record = any_recorded(context, x, w, bias);
  if (w.stored()) {
    require_no_gradient(record, "linear");
    return Var(ops::quantized_linear(x.value(), *w.stored(), value_or_none(bias), activation));
  }
  if (!record) {
    if (const auto packed = w.packed())
      return Var(ops::linear(x.value(), *packed, value_or_none(bias), activation).y);
  }
  ops::LinearResult result =
      ops::linear(x.value(), w.value(), value_or_none(bias), activation, record);
  Var y(std::move(result.y), record);
  if (!record) return y;
  context.tape->record(
      "linear", y,
      [x = x.value(), w = w.value(), pre = std::move(result.pre), activation, gx = x.gradient(),
       gw = w.gradient(), gb = gradient_or_none(bias)](const Tensor& dy) {
        const WeightSlots slots = weight_slots(gw, gb);
        const ops::LinearGradients gradients = ops::linear_backward(
            dy, x, w, activation, pre, gx.wanted(), {slots.w, slots.b, slots.into});
        if (gx.wanted()) gx.accumulate(gradients.dx);
      });
  return y;
}

Var activate(Context& context, const Var& x, ops::Activation activation) {
  const bool record = context.recording(x);
  Var y(ops::activate(x.value(), activation), record);
  if (record) {
    context.tape->record("activate", y,
                         [x = x.value(), activation, gx = x.gradient()](const Tensor& dy) {
                           gx.accumulate(ops::activate_backward(dy, x, activation));
                         });
  }
  return y;
}

Var embedding(Context& context, std::span<const std::int32_t> ids, const Var& table, double scale,
              const char* where) {
  const bool record = context.recording(table);
  if (table.stored()) {
    Tensor rows = ops::quantized_embedding(*table.stored(), ids);
    if (scale != 1) multiply(rows, scale);
    return Var(std::move(rows));
  }
  Var y(ops::embedding(ids, table.value(), scale, where), record);
  if (record) {
    context.tape->record("embedding", y,
                         [ids = std::vector<std::int32_t>(ids.begin(), ids.end()), scale,
                          gt = table.gradient()](const Tensor& dy) {
                           const auto [dtable, into] = gt.slot();
                           ops::embedding_backward(dy, ids, dtable, scale, into);
                         });
  }
  return y;
}

Var norm(Context& context, const Var& x, const NormWeights& weights) {
  const bool record = any_recorded(context, x, weights.gamma, weights.beta);
  ops::NormResult r = ops::norm(x.value(), weights.kind, weights.gamma.value(),
                                value_or_none(weights.beta), weights.eps);
  Var y(std::move(r.y), record);
  if (record) {
    context.tape->record(
        "norm", y,
        [x = x.value(), mean = r.mean, rstd = r.rstd, kind = weights.kind,
         gamma = weights.gamma.value(), gx = x.gradient(), gg = weights.gamma.gradient(),
         gb = gradient_or_none(weights.beta)](const Tensor& dy) {
          const WeightSlots slots = weight_slots(gg, gb);
          const Tensor dx =
              ops::norm_backward(dy, x, {kind, gamma, mean, rstd}, {slots.w, slots.b, slots.into});
          if (gx.wanted()) gx.accumulate(dx);
        });
  }
  return y;
}

AddNorm add_norm(Context& context, const Var& x, const Var& residual,
                 const ops::DropoutOptions& dropout, const NormWeights& weights) {
  const bool record = any_recorded(context, x, residual, weights.gamma, weights.beta);
  ops::AddNormResult r =
      ops::add_norm(x.value(), residual.value(), dropout, weights.kind, weights.gamma.value(),
                    value_or_none(weights.beta), weights.eps);
  AddNorm out{Var(std::move(r.sum), record), Var(std::move(r.norm.y), record)};
  if (!record) return out;
  auto rule = [sum = out.sum.value(), mean = r.norm.mean, rstd = r.norm.rstd, dropout,
               kind = weights.kind, gamma = weights.gamma.value(), gx = x.gradient(),
               gr = residual.gradient(), gs = out.sum.gradient(), gg = weights.gamma.gradient(),
               gb = gradient_or_none(weights.beta)](const Tensor& dy) {
    Tensor dsum = gs.arrived() ? gs.value() : Tensor();  // what came over the residual path
    if (dy.defined()) {
      const WeightSlots slots = weight_slots(gg, gb);
      dsum = ops::norm_backward(dy, sum, {kind, gamma, mean, rstd}, {slots.w, slots.b, slots.into},
                                dsum);
    }
    const bool shared =
        (!dy.defined() && gs.shared()) || (gx.wanted() && gr.wanted() && dropout.p == 0);
    if (gx.wanted() && dropout.p > 0) gx.accumulate(ops::dropout(dsum, dropout));
    if (gx.wanted() && dropout.p == 0) gx.accumulate(dsum, shared);
    if (gr.wanted()) gr.accumulate(dsum, shared);
  };
  context.tape->record("add_norm", out.y, std::move(rule), out.sum);
  return out;
}

Var dropout(Context& context, const Var& x, const ops::DropoutOptions& options,
            std::shared_ptr<const RaggedLayout> layout) {
  if (options.p == 0) return x;
  const bool record = context.recording(x);
  Var y(ops::dropout(x.value(), options), record);
  if (record) {
    context.tape->record(
        "dropout", y, [options, layout = std::move(layout), gx = x.gradient()](const Tensor& dy) {
          gx.accumulate(ops::dropout(dy, options));
        });
  }
  return y;
}

Var add_dropout(Context& context, const Var& x, const Var& residual,
                const ops::DropoutOptions& options) {
  const bool record = any_recorded(context, x, residual);
  Var y(ops::add_dropout(x.value(), residual.value(), options), record);
  if (record) {
    context.tape->record("add_dropout", y,
                         [options, gx = x.gradient(), gr = residual.gradient(),
                          gy = y.gradient()](const Tensor& dy) {
                           const bool shared =
                               gy.shared() || (gx.wanted() && gr.wanted() && options.p == 0);
                           if (gx.wanted() && options.p > 0)
                             gx.accumulate(ops::dropout(dy, options));
                           if (gx.wanted() && options.p == 0) gx.accumulate(dy, shared);
                           if (gr.wanted()) gr.accumulate(dy, shared);
                         });
  }
  return y;
}

Var add(Context& context, const Var& a, const Var& b) {
  const bool record = any_recorded(context, a, b);
  Var y(ops::add(a.value(), b.value()), record);
  if (record) {
    context.tape->record("add", y, [ga = a.gradient(), gb = b.gradient()](const Tensor& dy) {
      if (ga.wanted()) ga.accumulate(dy, /*shared=*/true);
      if (gb.wanted()) gb.accumulate(dy, /*shared=*/true);
    });
  }
  return y;
}

Var head_norm(Context& context, const Var& x, const HeadLayout& heads, const NormWeights& query,
              const NormWeights& key) {
  check_heads("head_norm", x.value(), heads);
  // A norm of rows [T H, D], and what its backward pass needs.
  struct Part {
    Tensor rows;
    ops::NormResult result;
    NormWeights weights;
    void forward(const Tensor& view) {
      rows = view.contiguous().reshape({-1, view.dim(2)});
      result = ops::norm(rows, weights.kind, weights.gamma.value(), value_or_none(weights.beta),
                         weights.eps);
      view.copy_from(result.y.reshape(view.shape()));
      result.y = Tensor();
    }
    void backward(const Tensor& view) const {
      const Gradient beta = gradient_or_none(weights.beta);
      const WeightSlots slots = weight_slots(weights.gamma.gradient(), beta);
      const Tensor dx =
          ops::norm_backward(view.contiguous().reshape({-1, view.dim(2)}), rows,
                             {weights.kind, weights.gamma.value(), result.mean, result.rstd},
                             {slots.w, slots.b, slots.into});
      view.copy_from(dx.reshape(view.shape()));
    }
  };
  const bool record = any_recorded(context, x, query.gamma, query.beta, key.gamma, key.beta);
  Part q, k;
  q.weights = query;
  k.weights = key;
  Var y(x.value(), record);
  const Heads views = split_heads(y.value(), heads);
  q.forward(views.q);
  k.forward(views.k);
  if (record) {
    context.tape->record("head_norm", y,
                         [q = std::move(q), k = std::move(k), heads, gx = x.gradient(),
                          gy = y.gradient()](const Tensor& dy) {
                           const Tensor dx = gy.shared() ? dy.clone() : dy;
                           const Heads d = split_heads(dx, heads);
                           q.backward(d.q);
                           k.backward(d.k);
                           if (gx.wanted()) gx.accumulate(dx);
                         });
  }
  return y;
}

Var rope(Context& context, const Var& x, const HeadLayout& heads, const ops::RopeOptions& options) {
  check_heads("rope", x.value(), heads);
  const RaggedLayout& layout = layout_of(context, "rope", x.value().dim(0));
  const auto rotate = [heads, options, &layout](const Tensor& t, bool inverse) {
    const Tensor rotated = t.reshape({t.dim(0), heads.heads + 2 * heads.kv_heads, heads.head_size})
                               .narrow(1, 0, heads.heads + heads.kv_heads);
    const std::span<const std::int32_t> positions = layout.positions;
    if (options.scaling.kind != ops::RopeScalingKind::kDynamic)
      return ops::rope_inplace(rotated, positions, options, inverse);
    for (std::int64_t b = 0; b < layout.batch(); ++b) {
      const std::int64_t start = layout.starts[static_cast<std::size_t>(b)], n = layout.length(b);
      ops::rope_inplace(
          rotated.narrow(0, start, n),
          positions.subspan(static_cast<std::size_t>(start), static_cast<std::size_t>(n)), options,
          inverse);
    }
  };
  const bool record = context.recording(x);
  Var y(x.value(), record);
  rotate(y.value(), false);
  if (record) {
    context.tape->record("rope", y,
                         [rotate, gx = x.gradient(), gy = y.gradient()](const Tensor& dy) {
                           const Tensor dx = gy.shared() ? dy.clone() : dy;
                           rotate(dx, true);
                           gx.accumulate(dx);
                         });
  }
  return y;
}

Var attention(Context& context, const Var& qkv, const HeadLayout& heads,
              const ops::AttentionOptions& options, const Var& bias) {
  check_heads("attention", qkv.value(), heads);
  const RaggedLayout& layout = layout_of(context, "attention", qkv.value().dim(0));
  const bool capture = context.capture != nullptr && context.capture->wants_attention();
  ops::AttentionOptions run = options;
  run.return_weights = capture;
  if (bias.defined()) run.mask = run.mask & Mask::additive(bias.value());
  ops::AttentionResult result =
      ops::attention(attention_input(split_heads(qkv.value(), heads), layout), run);
  if (capture) {
    context.capture->attention(context.module, result.weights);
    result.weights = Tensor();
  }
  const bool record = any_recorded(context, qkv, bias);
  const Shape flat{qkv.value().dim(0), heads.heads * heads.head_size};
  Var y(result.out.reshape(flat), record);
  if (record) {
    run.return_weights = false;
    context.tape->record(
        "attention", y,
        [qkv = qkv.value(), heads, run, result = std::move(result), &layout, gx = qkv.gradient(),
         gb = gradient_or_none(bias), like = value_or_none(bias)](const Tensor& dy) {
          const Tensor dqkv = Tensor::empty(qkv.shape(), qkv.dtype());
          const Heads d = split_heads(dqkv, heads);
          Tensor dbias;
          if (gb.wanted()) dbias = Tensor::empty(like.shape(), like.dtype());
          ops::attention_backward(dy.reshape(result.out.shape()),
                                  attention_input(split_heads(qkv, heads), layout), result, run,
                                  {d.q, d.k, d.v, dbias});
          if (gx.wanted()) gx.accumulate(dqkv);
          if (gb.wanted()) gb.accumulate(dbias);
        });
  }
  return y;
}

Var linear_attention(Context& context, const Var& qkv, const HeadLayout& heads, bool causal) {
  check_heads("attention", qkv.value(), heads);
  const RaggedLayout& layout = layout_of(context, "attention", qkv.value().dim(0));
  const Tensor out =
      ops::linear_attention(attention_input(split_heads(qkv.value(), heads), layout), causal);
  const bool record = context.recording(qkv);
  Var y(out.reshape({qkv.value().dim(0), heads.heads * heads.head_size}), record);
  if (record) {
    context.tape->record("linear_attention", y,
                         [qkv = qkv.value(), heads, causal, shape = out.shape(), &layout,
                          gx = qkv.gradient()](const Tensor& dy) {
                           const Tensor dqkv = Tensor::empty(qkv.shape(), qkv.dtype());
                           const Heads d = split_heads(dqkv, heads);
                           ops::linear_attention_backward(
                               dy.reshape(shape), attention_input(split_heads(qkv, heads), layout),
                               causal, {d.q, d.k, d.v});
                           gx.accumulate(dqkv);
                         });
  }
  return y;
}

Var pool(Context& context, const Var& x, ops::Pooling pooling) {
  const RaggedLayout& layout = layout_of(context, "pooling", x.value().dim(0));
  const bool record = context.recording(x);
  Var y(ops::pool(x.value(), layout, pooling), record);
  if (record) {
    context.tape->record("pool", y,
                         [x = x.value(), pooling, &layout, gx = x.gradient()](const Tensor& dy) {
                           gx.accumulate(ops::pool_backward(dy, x, layout, pooling));
                         });
  }
  return y;
}

Var softmax(Context& context, const Var& x) {
  const bool record = context.recording(x);
  Var y(ops::softmax(x.value()), record);
  if (record) {
    context.tape->record("softmax", y, [y = y.value(), gx = x.gradient()](const Tensor& dy) {
      gx.accumulate(ops::softmax_backward(dy, y));
    });
  }
  return y;
}

Var softcap(Context& context, const Var& x, double cap) {
  const bool record = context.recording(x);
  const auto scaled = [](const Tensor& from, double factor) {
    Tensor to = from.clone();
    const auto multiply = [&](auto* values) {
      using T = std::remove_pointer_t<decltype(values)>;
      for (std::int64_t i = 0; i < to.numel(); ++i) values[i] *= static_cast<T>(factor);
    };
    to.dtype() == DType::kFloat64 ? multiply(to.data<double>()) : multiply(to.data<float>());
    return to;
  };
  const Tensor z = scaled(x.value(), 1 / cap);
  Var y(scaled(ops::activate(z, ops::Activation::kTanh), cap), record);
  if (record) {
    context.tape->record("softcap", y, [z, gx = x.gradient()](const Tensor& dy) {
      gx.accumulate(ops::activate_backward(dy, z, ops::Activation::kTanh));
    });
  }
  return y;
}

Loss cross_entropy(Context& context, const Var& logits, std::span<const std::int32_t> targets,
                   const ops::CrossEntropyOptions& options) {
  const bool record = context.recording(logits);
  ops::CrossEntropyResult r = ops::cross_entropy(logits.value(), targets, options, record);
  const DType dtype = logits.value().dtype();
  const Tensor sum = Tensor::empty({1}, dtype);
  sum.fill(r.loss_sum);
  Loss loss{Var(sum, record), r.loss_sum, r.counted, r.correct};
  if (record) {
    context.tape->record(
        "cross_entropy", loss.sum, [d = r.dlogits, gl = logits.gradient()](const Tensor& dloss) {
          const double scale = dloss.to(DType::kFloat64).data<double>()[0];
          if (scale != 1) {  // an unusual seed: scale in the gradient's own type
            const auto multiply = [&](auto* values) {
              using T = std::remove_pointer_t<decltype(values)>;
              for (std::int64_t i = 0; i < d.numel(); ++i) values[i] *= static_cast<T>(scale);
            };
            d.dtype() == DType::kFloat64 ? multiply(d.data<double>()) : multiply(d.data<float>());
          }
          gl.accumulate(d);
        });
  }
  return loss;
}

}  // namespace qkv::inline v0::autograd
