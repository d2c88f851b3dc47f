// Attention on arrays [..., heads, length, channels]: the functions of qkv/attention.h.
#include "qkv/attention.h"

#include <optional>
#include <string>
#include <vector>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "attention_call.h"
#include "base/check.h"
#include "bindings.h"

namespace nb = nanobind;

namespace qkv::python {
namespace {

constexpr const char* kWhere = "attention";

nb::object forward(nb::handle q, nb::handle k, nb::handle v, const Keywords& keywords,
                   const Wanted& wanted) {
  const Call call = import_call(q, k, v);
  ops::AttentionOptions options = keywords.options(/*may_draw_seed=*/true);
  options.return_weights = wanted.weights;
  Tensor out, lse, weights;
  if (call.is_empty()) {
    const Shape s = call.q.tensor.shape();
    const DType type = call.q.tensor.dtype();
    out = Tensor::empty({s[0], s[1], s[2], call.v.tensor.dim(3)}, type);
    lse = Tensor::empty({s[0], s[1], s[2]}, statistic(type));
    if (wanted.weights)
      weights = Tensor::empty({s[0], s[1], s[2], call.k.tensor.dim(2)}, statistic(type));
  } else {
    const ops::AttentionInput input = call.input();
    ops::AttentionResult result;
    {
      const nb::gil_scoped_release no_gil;
      result = ops::attention(input, options);
    }
    out = call.turned(call.no_channels ? result.out.narrow(3, 0, 0) : result.out);
    lse = result.lse;
    weights = result.weights;
  }
  const nb::object exported = export_result(call, out);
  return pack_results(wanted, exported, wanted.lse ? export_result(call, lse) : nb::object(),
                      wanted.weights ? export_result(call, weights) : nb::object());
}

nb::object backward(nb::handle q, nb::handle k, nb::handle v, const BackwardArrays& arrays,
                    const Keywords& keywords, const std::optional<Extents>& dbias_shape) {
  const Call call = import_call(q, k, v);
  const ops::AttentionOptions options = keywords.options(/*may_draw_seed=*/false);
  const Tensor dout_tensor = import_operand(arrays.dout, "dout").tensor;
  ops::AttentionResult result;
  result.out = import_operand(arrays.out, "out").tensor;
  Array lse_array = import_array(arrays.lse, kWhere, "lse");
  require<ShapeError>(lse_array.rank() >= 2, kWhere,
                      "expected lse of shape [..., heads, length], got {}", lse_array.shape_text());
  result.lse = fold_leading(std::move(lse_array), 2, "lse").tensor;
  ops::AttentionGradients gradients{
      empty_like(call.q.tensor), empty_like(call.k.tensor), empty_like(call.v.tensor), {}};
  if (dbias_shape)
    gradients.dbias = Tensor::zeros(Shape(*dbias_shape), statistic(call.q.tensor.dtype()));
  if (call.is_empty() || call.no_channels) {
    for (const Tensor& gradient : {gradients.dq, gradients.dk, gradients.dv}) gradient.fill(0);
  } else {
    const ops::AttentionInput input = call.input();
    result.out = call.turned(result.out);
    const ops::AttentionGradients turned{call.turned(gradients.dq), call.turned(gradients.dk),
                                         call.turned(gradients.dv), gradients.dbias};
    const Tensor dout_turned = call.turned(dout_tensor);
    const nb::gil_scoped_release no_gil;
    ops::attention_backward(dout_turned, input, result, options, turned);
  }
  const nb::object dq = export_result(call, gradients.dq), dk = export_result(call, gradients.dk),
                   dv = export_result(call, gradients.dv);
  if (!dbias_shape) return nb::make_tuple(dq, dk, dv);
  return nb::make_tuple(dq, dk, dv, export_plain(gradients.dbias, call.library, call.like));
}

nb::list explain(nb::handle q, nb::handle k, nb::handle v, const Keywords& keywords,
                 const Wanted& wanted) {
  const Call call = import_call(q, k, v);
  ops::AttentionOptions options = keywords.options(/*may_draw_seed=*/true);
  options.return_weights = wanted.weights;
  nb::list choices;
  for (const auto& choice : ops::explain_attention(call.input(), options))
    choices.append(nb::make_tuple(choice.name, choice.refusal));
  return choices;
}

// Batch and heads as one row of heads over one sequence: the engine's linear attention takes ragged
// input, and needs one stride over all heads.
Tensor as_ragged(const Tensor& tensor) {
  Tensor t = tensor;
  if (t.dim(0) > 1 && t.dim(1) > 1 && t.stride(0) != t.stride(1) * t.dim(1)) t = t.contiguous();
  const std::int64_t heads = t.dim(0) * t.dim(1);
  const std::int64_t step = t.dim(1) > 1 ? t.stride(1) : t.stride(0);
  return Tensor::wrap_strided(t.raw(), {t.dim(2), heads, t.dim(3)},
                              {t.stride(2), step, t.stride(3)}, t.dtype(),
                              std::make_shared<Tensor>(t));
}

RaggedLayout one_sequence(const Call& call) {
  require<ShapeError>(call.q.tensor.dim(2) == call.k.tensor.dim(2), "linear_attention",
                      "expected q and k of equal length, got {} and {}", call.q.tensor.dim(2),
                      call.k.tensor.dim(2));
  const std::int64_t length = call.q.tensor.dim(2);
  return RaggedLayout::from_lengths({&length, 1});
}

ops::AttentionInput ragged_input(const Call& call, const RaggedLayout& layout) {
  ops::AttentionInput input;
  input.q = as_ragged(call.q.tensor);
  input.k = as_ragged(call.k.tensor);
  input.v = as_ragged(call.v.tensor);
  input.queries = input.keys = &layout;
  return input;
}

nb::object linear(nb::handle q, nb::handle k, nb::handle v, bool causal) {
  const Call call = import_call(q, k, v);
  const RaggedLayout layout = one_sequence(call);
  const Shape s = call.q.tensor.shape();
  if (call.is_empty()) {
    return export_result(
        call, Tensor::empty({s[0], s[1], s[2], call.v.tensor.dim(3)}, call.q.tensor.dtype()));
  }
  const ops::AttentionInput input = ragged_input(call, layout);
  Tensor out;
  {
    const nb::gil_scoped_release no_gil;
    out = ops::linear_attention(input, causal);  // [N, B H, Dv]
  }
  return export_result(call,
                       out.reshape({s[2], s[0], s[1], out.dim(2)}).transpose(0, 1).transpose(1, 2));
}

nb::object linear_backward(nb::handle dout, nb::handle q, nb::handle k, nb::handle v, bool causal) {
  const Call call = import_call(q, k, v);
  const RaggedLayout layout = one_sequence(call);
  const Tensor dout_tensor = import_operand(dout, "dout").tensor;
  std::vector<Tensor> gradients;
  for (const Operand* operand : {&call.q, &call.k, &call.v})
    gradients.push_back(Tensor::zeros(operand->tensor.shape(), operand->tensor.dtype()));
  if (!call.is_empty()) {
    const ops::AttentionInput input = ragged_input(call, layout);
    const Tensor dout_ragged = as_ragged(dout_tensor);
    const ops::AttentionGradients ragged{
        as_ragged(gradients[0]), as_ragged(gradients[1]), as_ragged(gradients[2]), {}};
    const nb::gil_scoped_release no_gil;
    ops::linear_attention_backward(dout_ragged, input, causal, ragged);
  }
  return nb::make_tuple(export_result(call, gradients[0]), export_result(call, gradients[1]),
                        export_result(call, gradients[2]));
}

// The keywords of the three functions of softmax attention, in one place.
#define QKV_KEYWORDS                                                            \
  nb::kw_only(), nb::arg("mask") = nb::none(), nb::arg("causal") = false,       \
                 nb::arg("window") = nb::none(), nb::arg("scale") = nb::none(), \
                 nb::arg("softcap") = nb::none(), nb::arg("backend") = "auto",  \
                 nb::arg("dropout_p") = 0.0, nb::arg("seed") = nb::none(),      \
                 nb::arg("cu_seqlens_q") = nb::none(), nb::arg("cu_seqlens_k") = nb::none()

}  // namespace

void bind_attention(nb::module_& m) {
  m.def(
      "scaled_dot_product_attention",
      [](nb::handle q, nb::handle k, nb::handle v, nb::object mask, bool causal, nb::object window,
         std::optional<double> scale, std::optional<double> softcap, const std::string& backend,
         double dropout_p, nb::object seed, nb::object cu_seqlens_q, nb::object cu_seqlens_k,
         bool return_lse, bool return_weights) {
        const Keywords keywords{mask, window, seed, causal, scale, softcap, backend, dropout_p};
        const Wanted wanted{return_lse, return_weights};
        const Boundaries boundaries{cu_seqlens_q, cu_seqlens_k};
        if (boundaries.given()) return ragged_forward(q, k, v, boundaries, keywords, wanted);
        return forward(q, k, v, keywords, wanted);
      },
      nb::arg("q"), nb::arg("k"), nb::arg("v"), QKV_KEYWORDS, nb::arg("return_lse") = false,
      nb::arg("return_weights") = false,
      "softmax(cap(scale * q k^T) + bias over visible keys) v for arrays [..., heads, length, "
      "channels].\n"
      "With return_lse also the logarithm of the sum of exponentials, [..., heads, length]; with\n"
      "return_weights also the weights [..., heads, queries, keys], in O(N S) memory.\n"
      "With cu_seqlens_q (and _k, else the same) the arrays are sequences packed without padding,\n"
      "[tokens, heads, channels]: sequence b is rows cu_seqlens[b] to cu_seqlens[b + 1]. lse is "
      "then\n[heads, tokens], and the weights are a list, [heads, queries, keys] of each "
      "sequence.");
  m.def(
      "scaled_dot_product_attention_backward",
      [](nb::handle dout, nb::handle q, nb::handle k, nb::handle v, nb::handle out, nb::handle lse,
         nb::object mask, bool causal, nb::object window, std::optional<double> scale,
         std::optional<double> softcap, const std::string& backend, double dropout_p,
         nb::object seed, nb::object cu_seqlens_q, nb::object cu_seqlens_k,
         const std::optional<Extents>& dbias_shape) {
        const Keywords keywords{mask, window, seed, causal, scale, softcap, backend, dropout_p};
        const Boundaries boundaries{cu_seqlens_q, cu_seqlens_k};
        if (boundaries.given())
          return ragged_backward(q, k, v, boundaries, {dout, out, lse}, keywords, dbias_shape);
        return backward(q, k, v, {dout, out, lse}, keywords, dbias_shape);
      },
      nb::arg("dout"), nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("out"), nb::arg("lse"),
      QKV_KEYWORDS, nb::arg("dbias_shape") = nb::none(),
      "(dq, dk, dv), under the keywords of the forward pass. With dbias_shape also the gradient of "
      "an\n"
      "additive bias of that shape: [N, S], [B, 1, 1, S], [B, 1, N, S] or [B, H, N, S], 1 where it "
      "broadcasts.");
  m.def(
      "explain_attention",
      [](nb::handle q, nb::handle k, nb::handle v, nb::object mask, bool causal, nb::object window,
         std::optional<double> scale, std::optional<double> softcap, const std::string& backend,
         double dropout_p, nb::object seed, nb::object cu_seqlens_q, nb::object cu_seqlens_k,
         bool return_weights) {
        const Keywords keywords{mask, window, seed, causal, scale, softcap, backend, dropout_p};
        const Wanted wanted{false, return_weights};
        const Boundaries boundaries{cu_seqlens_q, cu_seqlens_k};
        if (boundaries.given()) return ragged_explain(q, k, v, boundaries, keywords, wanted);
        return explain(q, k, v, keywords, wanted);
      },
      nb::arg("q"), nb::arg("k"), nb::arg("v"), QKV_KEYWORDS, nb::arg("return_weights") = false,
      "Which implementation takes the call: (name, reason of refusal) in order; no reason for the "
      "one taken.");
  m.def("linear_attention", &linear, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::kw_only(),
        nb::arg("causal") = false,
        "elu + 1 attention in linear time, for queries and keys of one length.");
  m.def("linear_attention_backward", &linear_backward, nb::arg("dout"), nb::arg("q"), nb::arg("k"),
        nb::arg("v"), nb::kw_only(), nb::arg("causal") = false, "(dq, dk, dv)");
  bind_ragged(m);
}

}  // namespace qkv::python
