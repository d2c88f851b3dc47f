// Attention and its masks: the functions of qkv/attention.h on arrays [..., heads, length,
// channels].
#include "qkv/attention.h"

#include <atomic>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "arrays.h"
#include "base/check.h"
#include "base/random.h"
#include "bindings.h"

namespace nb = nanobind;

namespace qkv::python {
namespace {

constexpr const char* kWhere = "attention";

using Extents = std::vector<std::int64_t>;

// One operand as [B, H, N, D], B the product of all leading extents.
struct Operand {
  Tensor tensor;
  Extents lead;
};

// The single stride of the leading dimensions seen as one, if there is one. Outside in, each has to
// step over the whole of the next.
std::optional<std::int64_t> merged_stride(const Array& array, std::size_t count) {
  std::int64_t stride = 0, extent = 1;
  for (std::size_t i = count; i-- > 0;) {
    if (array.shape[i] == 1) continue;
    if (extent == 1) {
      stride = array.strides[i];
      extent = array.shape[i];
    } else if (array.strides[i] == stride * extent) {
      extent *= array.shape[i];
    } else {
      return std::nullopt;
    }
  }
  return stride;
}

// `array` as [B, inner...] with `inner` trailing dimensions kept.
Operand fold_leading(Array array, int inner, const char* name) {
  const auto lead = static_cast<std::size_t>(array.rank() - inner);
  std::int64_t batch = 1;
  for (std::size_t i = 0; i < lead; ++i) {
    if (__builtin_mul_overflow(batch, array.shape[i], &batch)) {
      fail<ShapeError>(kWhere, "expected {} to fit in memory, got shape {}", name,
                       array.shape_text());
    }
  }
  const bool inner_dense = array.shape.back() <= 1 || array.strides.back() == 1;
  auto stride = merged_stride(array, lead);
  if (!stride || !inner_dense) {
    array = dense_copy(array);
    stride = merged_stride(array, lead);
  }
  Operand operand;
  operand.lead.assign(array.shape.begin(), array.shape.begin() + static_cast<std::ptrdiff_t>(lead));
  Extents shape = {batch}, strides = {*stride};
  shape.insert(shape.end(), array.shape.begin() + static_cast<std::ptrdiff_t>(lead),
               array.shape.end());
  strides.insert(strides.end(), array.strides.begin() + static_cast<std::ptrdiff_t>(lead),
                 array.strides.end());
  operand.tensor = Tensor::wrap_strided(array.data, Shape(shape), Shape(strides), array.dtype,
                                        std::move(array.owner));
  return operand;
}

Operand import_operand(nb::handle object, const char* name, Library* library = nullptr) {
  Array array = import_array(object, kWhere, name);
  if (array.rank() < 3) {
    fail<ShapeError>(kWhere, "expected {} of shape [..., heads, length, channels], got {}", name,
                     array.shape_text());
  }
  if (library != nullptr) *library = array.library;
  return fold_leading(std::move(array), 3, name);
}

// Heads and tokens of [B, H, N, D] lie in memory as [B, N, H, D].
bool is_token_major(const Tensor& t) {
  return t.dim(1) > 1 && t.dim(2) > 1 && t.stride(1) < t.stride(2);
}

// q, k, v and how results are to lie in memory and be handed over.
struct Call {
  Operand q, k, v;
  Library library = Library::kNumpy;
  nb::handle like;
  bool token_major = false;
  bool no_channels = false;  // v has none: its place is taken by a channel of k

  // [B, H, N, D] as the engine takes it under `token_major`, and back.
  Tensor turned(const Tensor& t) const { return token_major ? t.transpose(1, 2) : t; }
  bool is_empty() const {
    const Tensor& t = q.tensor;
    return t.dim(0) == 0 || t.dim(1) == 0 || t.dim(2) == 0;
  }
  ops::AttentionInput input() const {
    ops::AttentionInput in;
    in.q = turned(q.tensor);
    in.k = turned(k.tensor);
    in.v = turned(no_channels ? k.tensor.narrow(3, 0, 1) : v.tensor);
    in.heads_first = !token_major;
    return in;
  }
};

std::string extents_text(const Extents& extents) {
  std::string text = "[";
  for (std::size_t i = 0; i < extents.size(); ++i)
    text += fmt::format("{}{}", i > 0 ? ", " : "", extents[i]);
  return text + "]";
}

Call import_call(nb::handle q, nb::handle k, nb::handle v) {
  Call call;
  call.q = import_operand(q, "q", &call.library);
  call.k = import_operand(k, "k");
  call.v = import_operand(v, "v");
  call.like = q;
  if (call.q.lead != call.k.lead || call.q.lead != call.v.lead) {
    fail<ShapeError>(kWhere, "expected q, k, v of one batch shape, got {}, {} and {}",
                     extents_text(call.q.lead), extents_text(call.k.lead),
                     extents_text(call.v.lead));
  }
  call.token_major = is_token_major(call.q.tensor);
  call.no_channels = call.v.tensor.dim(3) == 0 && call.k.tensor.dim(3) > 0;
  if (call.is_empty()) {  // nothing to compute, but still nothing that does not fit
    require<ShapeError>(call.k.tensor.dim(1) == call.v.tensor.dim(1), kWhere,
                        "expected k and v with equal heads, got k {} and v {}",
                        call.k.tensor.dim(1), call.v.tensor.dim(1));
    require<ShapeError>(call.q.tensor.dim(3) == call.k.tensor.dim(3), kWhere,
                        "expected q and k of equal head size, got q {} and k {}",
                        call.q.tensor.dim(3), call.k.tensor.dim(3));
  }
  require<ShapeError>(call.k.tensor.dim(2) == call.v.tensor.dim(2), kWhere,
                      "expected k and v of equal length, got k {} and v {}", call.k.tensor.dim(2),
                      call.v.tensor.dim(2));
  return call;
}

// A result [B, ...] as an array [lead..., ...].
nb::object export_result(const Call& call, const Tensor& result) {
  Extents shape, strides;
  std::int64_t step = result.stride(0);
  for (std::size_t i = call.q.lead.size(); i-- > 0;) {
    shape.insert(shape.begin(), call.q.lead[i]);
    strides.insert(strides.begin(), step);
    step *= call.q.lead[i];
  }
  for (int i = 1; i < result.rank(); ++i) {
    shape.push_back(result.dim(i));
    strides.push_back(result.stride(i));
  }
  return export_array(result, shape, strides, call.library, call.like);
}

// An empty tensor shaped like `of` whose dimensions follow each other in memory as those of `of`
// do.
Tensor empty_like(const Tensor& of) {
  const Shape s = of.shape();
  if (!is_token_major(of)) return Tensor::empty(s, of.dtype());
  return Tensor::empty({s[0], s[2], s[1], s[3]}, of.dtype()).transpose(1, 2);
}

Mask import_mask(nb::handle mask) {
  if (mask.is_none()) return {};
  if (nb::isinstance<Mask>(mask)) return nb::cast<Mask>(mask);
  std::string got = nb::type_name(mask.type()).c_str();
  std::string advice = "Mask.keep(a) where True may attend, Mask.block(a) where True is blocked";
  if (PyObject_CheckBuffer(mask.ptr()) || nb::hasattr(mask, "__dlpack__")) {
    const Array array = import_array(mask, kWhere, "mask");
    got = fmt::format("a bare {} array", dtype_name(array.dtype));
    if (is_floating(array.dtype))
      advice = "Mask.additive(a) where it is added to the scores, " + advice;
  }
  type_error(
      fmt::format("[{}] expected a qkv.Mask, got {}: say what it means, {}", kWhere, got, advice));
}

Mask import_window(nb::handle window) {
  if (window.is_none()) return {};
  std::int64_t n = 0;
  if (nb::try_cast(window, n)) return Mask::window(n);
  std::pair<std::int64_t, std::int64_t> sides;
  if (nb::try_cast(window, sides)) return Mask::window(sides.first, sides.second);
  type_error(fmt::format("[{}] expected window as n or (left, right), got {}", kWhere,
                         nb::repr(window).c_str()));
}

ops::AttentionBackend import_backend(const std::string& name) {
  if (name == "auto") return ops::AttentionBackend::kAuto;
  if (name == "naive") return ops::AttentionBackend::kNaive;
  if (name == "flash") return ops::AttentionBackend::kFlash;
  fail<ArgumentError>(kWhere, "expected backend 'auto', 'naive' or 'flash', got '{}'", name);
}

// A seed for a call that names none. Differs from call to call and from process to process.
std::uint64_t fresh_seed() {
  static const std::uint64_t base =
      nb::cast<std::uint64_t>(nb::module_::import_("secrets").attr("randbits")(64));
  static std::atomic<std::uint64_t> calls{0};
  return hash_pair(base, ++calls);
}

// The keywords that forward, backward and the explanation share.
struct Keywords {
  nb::object mask, window, seed;
  bool causal = false;
  std::optional<double> scale, softcap;
  std::string backend;
  double dropout_p = 0;

  ops::AttentionOptions options(bool may_draw_seed) const {
    ops::AttentionOptions options;
    options.mask = import_mask(mask);
    if (causal) options.mask = options.mask & Mask::causal();
    if (!window.is_none()) options.mask = options.mask & import_window(window);
    options.scale = scale;
    options.softcap = softcap;
    options.backend = import_backend(backend);
    options.dropout_p = dropout_p;
    std::uint64_t number = 0;
    if (!seed.is_none()) {
      if (!nb::try_cast(seed, number)) {
        type_error(fmt::format("[{}] expected seed as a whole number in [0, 2^64), got {}", kWhere,
                               nb::repr(seed).c_str()));
      }
    } else if (dropout_p > 0) {
      require<ArgumentError>(may_draw_seed, kWhere,
                             "expected the seed of the forward pass with dropout_p {}, got none: "
                             "pass one to both",
                             dropout_p);
      number = fresh_seed();
    }
    options.dropout_key.key = hash_pair(number, hash_text(kWhere));
    return options;
  }
};

// The type of lse, and of the gradient of a bias.
DType statistic(DType dtype) {
  return dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
}

nb::object forward(nb::handle q, nb::handle k, nb::handle v, const Keywords& keywords,
                   bool return_lse) {
  const Call call = import_call(q, k, v);
  const ops::AttentionOptions options = keywords.options(/*may_draw_seed=*/true);
  Tensor out, lse;
  if (call.is_empty()) {
    const Shape s = call.q.tensor.shape();
    out = Tensor::empty({s[0], s[1], s[2], call.v.tensor.dim(3)}, call.q.tensor.dtype());
    lse = Tensor::empty({s[0], s[1], s[2]}, statistic(call.q.tensor.dtype()));
  } else {
    const ops::AttentionInput input = call.input();
    ops::AttentionResult result;
    {
      const nb::gil_scoped_release no_gil;
      result = ops::attention(input, options);
    }
    out = call.turned(call.no_channels ? result.out.narrow(3, 0, 0) : result.out);
    lse = result.lse;
  }
  nb::object exported = export_result(call, out);
  if (!return_lse) return exported;
  return nb::make_tuple(exported, export_result(call, lse));
}

// What the forward pass gave, and what its result's gradient is.
struct BackwardArrays {
  nb::handle dout, out, lse;
};

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
  Extents strides;
  for (int i = 0; i < gradients.dbias.rank(); ++i) strides.push_back(gradients.dbias.stride(i));
  return nb::make_tuple(
      dq, dk, dv, export_array(gradients.dbias, *dbias_shape, strides, call.library, call.like));
}

nb::list explain(nb::handle q, nb::handle k, nb::handle v, const Keywords& keywords) {
  const Call call = import_call(q, k, v);
  nb::list choices;
  for (const auto& choice :
       ops::explain_attention(call.input(), keywords.options(/*may_draw_seed=*/true)))
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
    const ops::AttentionGradients ragged{as_ragged(gradients[0]), as_ragged(gradients[1]),
                                         as_ragged(gradients[2])};
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
                 nb::arg("dropout_p") = 0.0, nb::arg("seed") = nb::none()

}  // namespace

void bind_attention(nb::module_& m) {
  m.def(
      "scaled_dot_product_attention",
      [](nb::handle q, nb::handle k, nb::handle v, nb::object mask, bool causal, nb::object window,
         std::optional<double> scale, std::optional<double> softcap, const std::string& backend,
         double dropout_p, nb::object seed, bool return_lse) {
        return forward(q, k, v, {mask, window, seed, causal, scale, softcap, backend, dropout_p},
                       return_lse);
      },
      nb::arg("q"), nb::arg("k"), nb::arg("v"), QKV_KEYWORDS, nb::arg("return_lse") = false,
      "softmax(cap(scale * q k^T) + bias over visible keys) v for arrays [..., heads, length, "
      "channels].\n"
      "With return_lse also the logarithm of the sum of exponentials, [..., heads, length].");
  m.def(
      "scaled_dot_product_attention_backward",
      [](nb::handle dout, nb::handle q, nb::handle k, nb::handle v, nb::handle out, nb::handle lse,
         nb::object mask, bool causal, nb::object window, std::optional<double> scale,
         std::optional<double> softcap, const std::string& backend, double dropout_p,
         nb::object seed, const std::optional<Extents>& dbias_shape) {
        return backward(q, k, v, {dout, out, lse},
                        {mask, window, seed, causal, scale, softcap, backend, dropout_p},
                        dbias_shape);
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
         double dropout_p, nb::object seed) {
        return explain(q, k, v, {mask, window, seed, causal, scale, softcap, backend, dropout_p});
      },
      nb::arg("q"), nb::arg("k"), nb::arg("v"), QKV_KEYWORDS,
      "Which implementation takes the call: (name, reason of refusal) in order; no reason for the "
      "one taken.");
  m.def("linear_attention", &linear, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::kw_only(),
        nb::arg("causal") = false,
        "elu + 1 attention in linear time, for queries and keys of one length.");
  m.def("linear_attention_backward", &linear_backward, nb::arg("dout"), nb::arg("q"), nb::arg("k"),
        nb::arg("v"), nb::kw_only(), nb::arg("causal") = false, "(dq, dk, dv)");
}

}  // namespace qkv::python
