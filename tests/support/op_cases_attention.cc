// The cases of attention.
#include "ops/attention.h"
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

OpCase attention_case(bool causal) {
  OpCase c;
  c.op = "attention";
  c.variant = causal ? "causal" : "full";
  c.parity = kShapes;
  c.tolerance = 5e-6;
  c.gradient = {7, 3, 1};
  c.speed = {2048, 32, 4};
  c.flops = [](OpShape s) { return 4.0 * pairs(s) * static_cast<double>(s.width * 2 * s.extra); };
  c.inputs = queries_keys_values;
  const auto options = [causal] {
    ops::AttentionOptions o;
    if (causal) o.mask = Mask::causal();
    return o;
  };
  c.forward = [=](OpShape s, const Tensors& in) {
    const Problem p(s, in);
    const ops::AttentionResult r = ops::attention(p.input, options());
    return Tensors{r.out, r.lse};
  };
  c.backward = [=](OpShape s, const Tensors& in, const Tensors& out, const Tensors& upstream) {
    const Problem p(s, in);
    const Tensors d = empty_like(in);
    ops::attention_backward(upstream[0], p.input, {out[0], out[1], Tensor()}, options(),
                            {d[0], d[1], d[2]});
    return d;
  };
  return c;
}

OpCase linear_attention_case(bool causal) {
  OpCase c = attention_case(causal);
  c.op = "linear_attention";
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
    const Tensors d = empty_like(in);
    ops::linear_attention_backward(upstream[0], p.input, causal, {d[0], d[1], d[2]});
    return d;
  };
  return c;
}

}  // namespace

std::vector<OpCase> attention_op_cases() {
  return {attention_case(false), attention_case(true), linear_attention_case(false),
          linear_attention_case(true)};
}

}  // namespace qkv::testing
