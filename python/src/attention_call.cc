#include "attention_call.h"

#include <atomic>
#include <utility>

#include <fmt/format.h>
#include <nanobind/stl/pair.h>

#include "base/check.h"
#include "base/random.h"

namespace nb = nanobind;

namespace qkv::python {
namespace {

constexpr const char* kWhere = "attention";

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

std::string extents_text(const Extents& extents) {
  std::string text = "[";
  for (std::size_t i = 0; i < extents.size(); ++i)
    text += fmt::format("{}{}", i > 0 ? ", " : "", extents[i]);
  return text + "]";
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

}  // namespace

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

Operand import_operand(nb::handle object, const char* name, Library* library) {
  Array array = import_array(object, kWhere, name);
  if (array.rank() < 3) {
    fail<ShapeError>(kWhere, "expected {} of shape [..., heads, length, channels], got {}", name,
                     array.shape_text());
  }
  if (library != nullptr) *library = array.library;
  return fold_leading(std::move(array), 3, name);
}

bool is_token_major(const Tensor& t) {
  return t.dim(1) > 1 && t.dim(2) > 1 && t.stride(1) < t.stride(2);
}

Tensor empty_like(const Tensor& of) {
  const Shape s = of.shape();
  if (!is_token_major(of)) return Tensor::empty(s, of.dtype());
  return Tensor::empty({s[0], s[2], s[1], s[3]}, of.dtype()).transpose(1, 2);
}

bool Call::is_empty() const {
  const Tensor& t = q.tensor;
  return t.dim(0) == 0 || t.dim(1) == 0 || t.dim(2) == 0;
}

ops::AttentionInput Call::input() const {
  ops::AttentionInput in;
  in.q = turned(q.tensor);
  in.k = turned(k.tensor);
  in.v = turned(no_channels ? k.tensor.narrow(3, 0, 1) : v.tensor);
  in.heads_first = !token_major;
  return in;
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

nb::object export_plain(const Tensor& result, Library library, nb::handle like) {
  Extents shape, strides;
  for (int i = 0; i < result.rank(); ++i) {
    shape.push_back(result.dim(i));
    strides.push_back(result.stride(i));
  }
  return export_array(result, shape, strides, library, like);
}

DType statistic(DType dtype) {
  return dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
}

ops::AttentionOptions Keywords::options(bool may_draw_seed) const {
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

nb::object pack_results(const Wanted& wanted, const nb::object& out, const nb::object& lse,
                        const nb::object& weights) {
  if (wanted.lse && wanted.weights) return nb::make_tuple(out, lse, weights);
  if (wanted.lse) return nb::make_tuple(out, lse);
  if (wanted.weights) return nb::make_tuple(out, weights);
  return out;
}

}  // namespace qkv::python
