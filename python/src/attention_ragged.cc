// Attention over sequences packed without padding, and partial results put together.
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "qkv/layout.h"

#include "attention_call.h"
#include "base/check.h"
#include "ops/attention_merge.h"

namespace nb = nanobind;

namespace qkv::python {
namespace {

constexpr const char* kWhere = "attention";

// [T, H, D] with contiguous channels.
Tensor import_packed(nb::handle object, const char* name, Library* library = nullptr) {
  Array array = import_array(object, kWhere, name);
  require<ShapeError>(array.rank() == 3, kWhere,
                      "expected {} of shape [tokens, heads, channels] beside cu_seqlens, got {}",
                      name, array.shape_text());
  if (library != nullptr) *library = array.library;
  const bool dense = array.shape.back() <= 1 || array.strides.back() == 1;
  return dense ? array.tensor() : dense_copy(array).tensor();
}

// The boundaries of sequences that fill `tokens` rows.
RaggedLayout import_boundaries(nb::handle object, const char* name, std::int64_t tokens) {
  const std::vector<std::int64_t> starts = import_integers(object, kWhere, name, "[B + 1]");
  require<ShapeError>(!starts.empty() && starts[0] == 0, kWhere,
                      "expected {} to start with 0, got {}", name,
                      starts.empty() ? std::string("no boundary") : std::to_string(starts[0]));
  require<ShapeError>(tokens <= std::numeric_limits<std::int32_t>::max(), kWhere,
                      "expected at most 2^31 - 1 tokens, got {}", tokens);
  RaggedLayout layout;
  for (std::size_t b = 1; b < starts.size(); ++b) {
    require<ShapeError>(starts[b] >= starts[b - 1], kWhere,
                        "expected {} in ascending order, got {} after {}", name, starts[b],
                        starts[b - 1]);
    require<ShapeError>(starts[b] <= tokens, kWhere,
                        "expected {} within the {} tokens that it divides, got {}", name, tokens,
                        starts[b]);
    layout.starts.push_back(static_cast<std::int32_t>(starts[b]));
  }
  require<ShapeError>(starts.back() == tokens, kWhere,
                      "expected {} to end with the {} tokens that it divides, got {}", name, tokens,
                      starts.back());
  return layout;
}

struct Packed {
  Tensor q, k, v;
  RaggedLayout queries, keys;
  Library library = Library::kNumpy;
  nb::handle like;

  bool is_empty() const { return q.dim(0) == 0 || q.dim(1) == 0; }
  bool no_channels() const { return v.dim(2) == 0 && k.dim(2) > 0; }
  ops::AttentionInput input() const {
    return {q, k, no_channels() ? k.narrow(2, 0, 1) : v, &queries, &keys};
  }
};

Packed import_call(nb::handle q, nb::handle k, nb::handle v, const Boundaries& boundaries) {
  require<ArgumentError>(!boundaries.queries.is_none(), kWhere,
                         "expected cu_seqlens_q beside cu_seqlens_k, got none");
  Packed call;
  call.q = import_packed(q, "q", &call.library);
  call.k = import_packed(k, "k");
  call.v = import_packed(v, "v");
  call.like = q;
  require<ShapeError>(call.k.dim(0) == call.v.dim(0) && call.k.dim(1) == call.v.dim(1), kWhere,
                      "expected k and v of equal tokens and heads, got {} and {}",
                      call.k.shape().str(), call.v.shape().str());
  require<ShapeError>(call.q.dim(2) == call.k.dim(2), kWhere,
                      "expected q and k of equal head size, got q {} and k {}", call.q.dim(2),
                      call.k.dim(2));
  call.queries = import_boundaries(boundaries.queries, "cu_seqlens_q", call.q.dim(0));
  const bool same = boundaries.keys.is_none();
  require<ShapeError>(!same || call.k.dim(0) == call.q.dim(0), kWhere,
                      "expected cu_seqlens_k for {} tokens of k and {} of q, got none",
                      call.k.dim(0), call.q.dim(0));
  call.keys =
      same ? call.queries : import_boundaries(boundaries.keys, "cu_seqlens_k", call.k.dim(0));
  require<ShapeError>(call.keys.batch() == call.queries.batch(), kWhere,
                      "expected as many sequences of keys as of queries, got {} and {}",
                      call.keys.batch(), call.queries.batch());
  return call;
}

// [H, N, S] of each sequence, out of the flat tensor of all.
nb::object export_weights(const Packed& call, const Tensor& weights) {
  nb::list list;
  std::int64_t begin = 0;
  for (std::int64_t b = 0; b < call.queries.batch(); ++b) {
    const Shape shape{call.q.dim(1), call.queries.length(b), call.keys.length(b)};
    const Tensor part = weights.defined() ? weights.narrow(0, begin, shape.numel()).reshape(shape)
                                          : Tensor::empty(shape, statistic(call.q.dtype()));
    list.append(export_plain(part, call.library, call.like));
    begin += shape.numel();
  }
  return list;
}

// Partial results from either form: [..., H, N, Dv] with lse [..., H, N], or packed [T, H, Dv] with
// [H, T].
struct Partial {
  ops::AttentionResult result;
  Extents lead;
};

Partial import_partial(nb::handle out, nb::handle lse, bool packed, Library* library = nullptr) {
  Partial partial;
  Array sums = import_array(lse, kWhere, "lse");
  require<ShapeError>(sums.rank() >= 2, kWhere,
                      "expected lse of shape [..., heads, length], got {}", sums.shape_text());
  if (packed) {
    partial.result.out = import_packed(out, "values", library);
    partial.result.lse = sums.tensor();
    return partial;
  }
  Operand values = import_operand(out, "values", library);
  partial.result.out = values.tensor;
  partial.lead = values.lead;
  Operand folded = fold_leading(std::move(sums), 2, "lse");
  require<ShapeError>(folded.lead == values.lead, kWhere,
                      "expected values and lse of one batch shape, got values {} and lse {}",
                      values.tensor.shape().str(), folded.tensor.shape().str());
  partial.result.lse = folded.tensor;
  return partial;
}

// How results of merging are handed over.
struct Form {
  Extents lead;
  bool packed = false;
  Library library = Library::kNumpy;
  nb::handle like;

  nb::object give(const Tensor& tensor) const {
    if (packed) return export_plain(tensor, library, like);
    Call call;
    call.q.lead = lead;
    call.library = library;
    call.like = like;
    return export_result(call, tensor);
  }
};

void check_leads(const Partial& a, const Partial& b) {
  require<ShapeError>(a.lead == b.lead, kWhere, "expected two results of one shape, got {} and {}",
                      a.result.out.shape().str(), b.result.out.shape().str());
}

nb::object merge(nb::handle a_out, nb::handle a_lse, nb::handle b_out, nb::handle b_lse,
                 bool packed) {
  Form form{{}, packed, Library::kNumpy, a_out};
  const Partial a = import_partial(a_out, a_lse, packed, &form.library);
  const Partial b = import_partial(b_out, b_lse, packed);
  check_leads(a, b);
  form.lead = a.lead;
  ops::AttentionResult merged;
  {
    const nb::gil_scoped_release no_gil;
    merged = ops::merge_attention(a.result, b.result, /*heads_first=*/!packed);
  }
  return nb::make_tuple(form.give(merged.out), form.give(merged.lse));
}

// The two sides, and what merging them gave.
struct MergeArrays {
  nb::handle a_out, a_lse, b_out, b_lse, out, lse;
};

nb::object merge_backward(nb::handle dout, const MergeArrays& arrays, nb::handle dlse,
                          bool packed) {
  Form form{{}, packed, Library::kNumpy, arrays.a_out};
  const Partial a = import_partial(arrays.a_out, arrays.a_lse, packed, &form.library);
  const Partial b = import_partial(arrays.b_out, arrays.b_lse, packed);
  const Partial merged = import_partial(arrays.out, arrays.lse, packed);
  const Partial gradient =
      import_partial(dout, dlse.is_none() ? arrays.lse : dlse, packed);  // lse: only for its shape
  for (const Partial* part : {&b, &merged, &gradient}) check_leads(a, *part);
  form.lead = a.lead;
  ops::MergeGradients given;
  {
    const nb::gil_scoped_release no_gil;
    given = ops::merge_attention_backward(gradient.result.out,
                                          dlse.is_none() ? Tensor() : gradient.result.lse, a.result,
                                          b.result, merged.result, /*heads_first=*/!packed);
  }
  return nb::make_tuple(form.give(given.a_out), form.give(given.a_lse), form.give(given.b_out),
                        form.give(given.b_lse));
}

}  // namespace

nb::object ragged_forward(nb::handle q, nb::handle k, nb::handle v, const Boundaries& boundaries,
                          const Keywords& keywords, const Wanted& wanted) {
  const Packed call = import_call(q, k, v, boundaries);
  ops::AttentionOptions options = keywords.options(/*may_draw_seed=*/true);
  options.return_weights = wanted.weights;
  ops::AttentionResult result;
  if (call.is_empty()) {
    result.out = Tensor::empty({call.q.dim(0), call.q.dim(1), call.v.dim(2)}, call.q.dtype());
    result.lse = Tensor::empty({call.q.dim(1), call.q.dim(0)}, statistic(call.q.dtype()));
  } else {
    const nb::gil_scoped_release no_gil;
    result = ops::attention(call.input(), options);
    if (call.no_channels()) result.out = result.out.narrow(2, 0, 0);
  }
  return pack_results(wanted, export_plain(result.out, call.library, call.like),
                      wanted.lse ? export_plain(result.lse, call.library, call.like) : nb::object(),
                      wanted.weights ? export_weights(call, result.weights) : nb::object());
}

nb::object ragged_backward(nb::handle q, nb::handle k, nb::handle v, const Boundaries& boundaries,
                           const BackwardArrays& arrays, const Keywords& keywords,
                           const std::optional<Extents>& dbias_shape) {
  const Packed call = import_call(q, k, v, boundaries);
  const ops::AttentionOptions options = keywords.options(/*may_draw_seed=*/false);
  const Tensor dout = import_packed(arrays.dout, "dout");
  const ops::AttentionResult result{import_packed(arrays.out, "out"),
                                    import_array(arrays.lse, kWhere, "lse").tensor(), Tensor()};
  require<ShapeError>(result.lse.shape() == Shape({call.q.dim(1), call.q.dim(0)}), kWhere,
                      "expected lse of shape [heads, tokens], got {}", result.lse.shape().str());
  ops::AttentionGradients gradients{Tensor::empty(call.q.shape(), call.q.dtype()),
                                    Tensor::empty(call.k.shape(), call.k.dtype()),
                                    Tensor::empty(call.v.shape(), call.v.dtype()),
                                    {}};
  if (dbias_shape) gradients.dbias = Tensor::zeros(Shape(*dbias_shape), statistic(call.q.dtype()));
  if (call.is_empty() || call.no_channels()) {
    for (const Tensor& gradient : {gradients.dq, gradients.dk, gradients.dv}) gradient.fill(0);
  } else {
    const nb::gil_scoped_release no_gil;
    ops::attention_backward(dout, call.input(), result, options, gradients);
  }
  nb::list given;
  for (const Tensor& gradient : {gradients.dq, gradients.dk, gradients.dv})
    given.append(export_plain(gradient, call.library, call.like));
  if (dbias_shape) given.append(export_plain(gradients.dbias, call.library, call.like));
  return nb::tuple(given);
}

nb::list ragged_explain(nb::handle q, nb::handle k, nb::handle v, const Boundaries& boundaries,
                        const Keywords& keywords, const Wanted& wanted) {
  const Packed call = import_call(q, k, v, boundaries);
  ops::AttentionOptions options = keywords.options(/*may_draw_seed=*/true);
  options.return_weights = wanted.weights;
  nb::list choices;
  for (const auto& choice : ops::explain_attention(call.input(), options))
    choices.append(nb::make_tuple(choice.name, choice.refusal));
  return choices;
}

void bind_ragged(nb::module_& m) {
  m.def("merge_attention", &merge, nb::arg("out_a"), nb::arg("lse_a"), nb::arg("out_b"),
        nb::arg("lse_b"), nb::kw_only(), nb::arg("packed") = false,
        "(out, lse) of attention over the keys of both sides, from the results over each:\n"
        "out = e^(lse_a - lse) out_a + e^(lse_b - lse) out_b with lse = log(e^lse_a + e^lse_b).\n"
        "A row without keys on one side (lse -inf) takes no part. packed: results of calls with\n"
        "cu_seqlens, out [tokens, heads, channels] and lse [heads, tokens].");
  m.def(
      "merge_attention_backward",
      [](nb::handle dout, nb::handle a_out, nb::handle a_lse, nb::handle b_out, nb::handle b_lse,
         nb::handle out, nb::handle lse, nb::object dlse, bool packed) {
        return merge_backward(dout, {a_out, a_lse, b_out, b_lse, out, lse}, dlse, packed);
      },
      nb::arg("dout"), nb::arg("out_a"), nb::arg("lse_a"), nb::arg("out_b"), nb::arg("lse_b"),
      nb::arg("out"), nb::arg("lse"), nb::kw_only(), nb::arg("dlse") = nb::none(),
      nb::arg("packed") = false,
      "(dout_a, dlse_a, dout_b, dlse_b) from the gradients of the merged out and, if given, lse.");
}

}  // namespace qkv::python
