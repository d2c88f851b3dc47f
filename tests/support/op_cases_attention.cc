// The cases of attention.
#include "qkv/attention.h"

#include "ops/attention_merge.h"
#include "ops/random_features.h"
#include "support/op_case.h"

namespace qkv::testing {
namespace {

// q [rows, 2 extra, width], k and v [rows, extra, width]: two query heads share a key/value head.
Tensors queries_keys_values(OpShape s, DType dtype, Random& r) {
  return {random_normal({s.rows, 2 * s.extra, s.width}, dtype, r),
          random_normal({s.rows, s.extra, s.width}, dtype, r),
          random_normal({s.rows, s.extra, s.width}, dtype, r)};
}

struct Problem {
  RaggedLayout layout;
  ops::AttentionInput input;
  Problem(OpShape s, const Tensors& in)
      : layout(ragged_rows(s.rows)), input{in[0], in[1], in[2], &layout, &layout} {}
  Problem(const Problem&) = delete;
  Problem& operator=(const Problem&) = delete;
};

Tensors empty_like(const Tensors& in) {
  Tensors out;
  for (const Tensor& x : in) out.push_back(Tensor::empty(x.shape(), x.dtype()));
  return out;
}

double pairs(OpShape s) {
  double sum = 0;
  const RaggedLayout layout = ragged_rows(s.rows);
  for (std::int64_t b = 0; b < layout.batch(); ++b)
    sum += static_cast<double>(layout.length(b) * layout.length(b));
  return sum;
}

const std::vector<OpShape> kShapes = {{1, 1, 1},   {3, 8, 1},    {40, 16, 2},
                                      {70, 33, 1}, {200, 64, 2}, {90, 80, 1}};

// Attention over q, k, v under `options`.
OpCase attention_case(const char* variant,
                      const std::function<ops::AttentionOptions(OpShape)>& options) {
  OpCase c;
  c.op = "attention";
  c.variant = variant;
  c.parity = kShapes;
  c.tolerance = 5e-6;
  c.gradient = {7, 3, 1};
  c.speed = {2048, 32, 4};
  c.flops = [](OpShape s) { return 4.0 * pairs(s) * static_cast<double>(s.width * 2 * s.extra); };
  c.inputs = queries_keys_values;
  c.differentiable = 2;
  c.forward = [=](OpShape s, const Tensors& in) {
    const Problem p(s, in);
    const ops::AttentionResult r = ops::attention(p.input, options(s));
    return Tensors{r.out, r.lse};
  };
  c.backward = [=](OpShape s, const Tensors& in, const Tensors& out, const Tensors& upstream) {
    const Problem p(s, in);
    Tensors d = empty_like(in);
    ops::attention_backward(upstream[0], upstream[1], p.input, {out[0], out[1], Tensor()},
                            options(s), {d[0], d[1], d[2]});
    return d;
  };
  return c;
}

ops::AttentionOptions with_mask(const Mask& mask) {
  ops::AttentionOptions options;
  options.mask = mask;
  return options;
}

// The same with an additive bias for all sequences and heads as a fourth input.
OpCase biased_attention_case() {
  OpCase c = attention_case("bias", {});
  c.inputs = [](OpShape s, DType dtype, Random& r) {
    Tensors in = queries_keys_values(s, dtype, r);
    const std::int64_t n = ragged_rows(s.rows).max_length();
    in.push_back(random_normal({n, n}, dtype, r));
    return in;
  };
  c.forward = [](OpShape s, const Tensors& in) {
    const Problem p(s, in);
    const ops::AttentionResult r = ops::attention(p.input, with_mask(Mask::additive(in[3])));
    return Tensors{r.out, r.lse};
  };
  c.backward = [](OpShape s, const Tensors& in, const Tensors& out, const Tensors& upstream) {
    const Problem p(s, in);
    Tensors d = empty_like(in);
    ops::attention_backward(upstream[0], upstream[1], p.input, {out[0], out[1], Tensor()},
                            with_mask(Mask::additive(in[3])), {d[0], d[1], d[2], d[3]});
    return d;
  };
  return c;
}

std::vector<OpCase> softmax_attention_cases() {
  return {
      attention_case("full", [](OpShape) { return ops::AttentionOptions{}; }),
      attention_case("causal", [](OpShape) { return with_mask(Mask::causal()); }),
      attention_case("softcap",
                     [](OpShape) {
                       ops::AttentionOptions options = with_mask(Mask::causal());
                       options.softcap = 1.5;
                       return options;
                     }),
      attention_case("alibi",
                     [](OpShape s) { return with_mask(Mask::alibi(alibi_slopes(2 * s.extra))); }),
      attention_case("globals",
                     [](OpShape) {
                       return with_mask(Mask::window_with_globals(2, 1, {0, 5}));
                     }),
      biased_attention_case(),
  };
}

OpCase linear_attention_case(bool causal) {
  OpCase c = attention_case(causal ? "causal" : "full", {});
  c.op = "linear_attention";
  c.differentiable = 1;
  // Of a lone token, or with one channel, q and k cancel: their gradients are 0 up to rounding, and
  // a relative difference of zeros says nothing.
  c.parity.front() = {9, 3, 1};
  c.flops = [](OpShape s) {
    return 8.0 * static_cast<double>(s.rows * s.width * s.width * s.extra);
  };
  c.forward = [=](OpShape s, const Tensors& in) {
    const Problem p(s, in);
    return Tensors{ops::linear_attention(p.input, causal)};
  };
  c.backward = [=](OpShape s, const Tensors& in, const Tensors&, const Tensors& upstream) {
    const Problem p(s, in);
    Tensors d = empty_like(in);
    ops::linear_attention_backward(upstream[0], p.input, causal, {d[0], d[1], d[2]});
    return d;
  };
  return c;
}

OpCase random_features_case() {
  OpCase c;
  c.op = "random_features";
  c.parity = {{1, 1, 1}, {1, 8, 3}, {1, 33, 2}};
  c.tolerance = 1e-6;
  c.no_gradient = "the projection is fixed";
  c.inputs = [](OpShape, DType dtype, Random&) { return Tensors{Tensor::zeros({1}, dtype)}; };
  c.forward = [](OpShape s, const Tensors& in) {
    return Tensors{ops::random_features(s.width * s.extra + 1, s.width, 5, in[0].dtype())};
  };
  return c;
}

OpCase random_feature_attention_case(bool causal) {
  OpCase c = linear_attention_case(causal);
  c.op = "random_feature_attention";
  c.tolerance = 2e-5;
  const auto projection = [](OpShape s, const Tensors& in) {
    return ops::random_features(s.width + 5, s.width, 9, in[0].dtype());
  };
  const ops::RandomFeatureOptions options{.causal = causal, .scale = 0.3};
  c.flops = [](OpShape s) {
    return 8.0 * static_cast<double>(s.rows * (s.width + 5) * s.width * s.extra);
  };
  c.forward = [=](OpShape s, const Tensors& in) {
    const Problem p(s, in);
    return Tensors{ops::random_feature_attention(p.input, projection(s, in), options)};
  };
  c.backward = [=](OpShape s, const Tensors& in, const Tensors&, const Tensors& upstream) {
    const Problem p(s, in);
    Tensors d = empty_like(in);
    ops::random_feature_attention_backward(upstream[0], p.input, projection(s, in), options,
                                           {d[0], d[1], d[2]});
    return d;
  };
  return c;
}

OpCase merge_attention_case() {
  OpCase c;
  c.op = "merge_attention";
  c.parity = {{1, 1, 1}, {7, 5, 2}, {90, 33, 3}};
  c.gradient = {4, 3, 2};
  c.speed = {4096, 64, 8};
  c.bytes = [](OpShape s) { return 12.0 * static_cast<double>(s.rows * s.width * s.extra); };
  c.backward_bytes = [](OpShape s) {
    return 24.0 * static_cast<double>(s.rows * s.width * s.extra);
  };
  c.differentiable = 2;
  c.inputs = [](OpShape s, DType dtype, Random& r) {
    const Shape out{s.rows, s.extra, s.width}, lse{s.extra, s.rows};
    return Tensors{random_normal(out, dtype, r), random_normal(lse, dtype, r),
                   random_normal(out, dtype, r), random_normal(lse, dtype, r)};
  };
  c.forward = [](OpShape, const Tensors& in) {
    const ops::AttentionResult r =
        ops::merge_attention({in[0], in[1], Tensor()}, {in[2], in[3], Tensor()});
    return Tensors{r.out, r.lse};
  };
  c.backward = [](OpShape, const Tensors& in, const Tensors& out, const Tensors& upstream) {
    const ops::MergeGradients d =
        ops::merge_attention_backward(upstream[0], upstream[1], {in[0], in[1], Tensor()},
                                      {in[2], in[3], Tensor()}, {out[0], out[1], Tensor()});
    return Tensors{d.a_out, d.a_lse, d.b_out, d.b_lse};
  };
  return c;
}

}  // namespace

std::vector<OpCase> attention_op_cases() {
  std::vector<OpCase> cases = softmax_attention_cases();
  cases.push_back(merge_attention_case());
  cases.push_back(linear_attention_case(false));
  cases.push_back(linear_attention_case(true));
  cases.push_back(random_features_case());
  cases.push_back(random_feature_attention_case(false));
  cases.push_back(random_feature_attention_case(true));
  return cases;
}

}  // namespace qkv::testing
