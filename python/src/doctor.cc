// The doctor on functions of Python. python/qkv/doctor.py wraps them; here they become the
// callables of qkv/doctor.h.
#include "qkv/doctor.h"

#include <filesystem>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "arrays.h"
#include "base/check.h"
#include "bindings.h"

namespace nb = nanobind;

namespace qkv::python {
namespace {

using ReportText = std::pair<std::string, std::string>;  // JSON, table

// Ctrl-C inside a probed function: no exception that a probe would take for the function's own.
struct Interrupted {
  nb::python_error error;
};

// Calls into Python; what it raises becomes an error with one line.
template <class Call>
auto guarded(Call&& call) {
  try {
    return call();
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_Exception)) throw Interrupted{std::move(error)};
    const std::string type = nb::type_name(error.type()).c_str();
    const std::string text = nb::str(error.value()).c_str();
    if (type.ends_with("_TimeLimit")) throw doctor::TimeLimitError(text);
    if (type.ends_with("_Refused")) throw doctor::GradientRefused(text);
    throw std::runtime_error(type.substr(type.rfind('.') + 1) + ": " + text);
  }
}

nb::object array_or_none(const Tensor& tensor) {
  return tensor.defined() ? export_numpy(tensor) : nb::object(nb::none());
}

Tensor tensor_or_nothing(nb::handle object, const char* name) {
  if (object.is_none()) return {};
  return dense_copy(import_array(object, "doctor", name)).tensor();
}

nb::object number_or_none(const auto& value) {
  return value ? nb::cast(*value) : nb::object(nb::none());
}

nb::tuple arguments_of(const doctor::AttentionCall& call) {
  return nb::make_tuple(export_numpy(call.q), export_numpy(call.k), export_numpy(call.v),
                        array_or_none(call.mask), number_or_none(call.causal),
                        number_or_none(call.window));
}

doctor::MaskStyle parse_style(const std::optional<std::string>& name) {
  if (!name) return doctor::MaskStyle::kNone;
  if (*name == "keep") return doctor::MaskStyle::kKeep;
  if (*name == "block") return doctor::MaskStyle::kBlock;
  if (*name == "additive") return doctor::MaskStyle::kAdditive;
  fail<ArgumentError>("doctor", "expected mask 'keep', 'block', 'additive' or None, got '{}'",
                      *name);
}

std::optional<doctor::RopeStatement> parse_rope(const std::optional<std::string>& pairing,
                                                double base) {
  if (!pairing) return std::nullopt;
  require<ArgumentError>(*pairing == "half" || *pairing == "interleaved", "doctor",
                         "expected rope 'half', 'interleaved' or None, got '{}'", *pairing);
  return doctor::RopeStatement{*pairing == "interleaved", base};
}

template <class Check>
ReportText text_of(Check&& check) {
  try {
    const doctor::Report report = check();
    return {report.to_json(), report.str()};
  } catch (Interrupted& interrupted) {
    throw std::move(interrupted.error);
  }
}

struct AttentionFacts {
  std::optional<std::string> mask;
  bool takes_causal, always_causal, takes_window;
  std::optional<double> scale;
  std::optional<std::int64_t> head_size, kv_heads, window;
  std::optional<std::string> rope;
  double rope_base, time_limit;
};

// `adapter`: forward(q, k, v, mask, causal, window) -> (out, weights or None, library); and, or
// None, backward(..., dout) -> (dq, dk, dv), peak_bytes(...) and reseed(seed).
ReportText check_attention(nb::object adapter, const AttentionFacts& facts) {
  doctor::AttentionUnderTest f;
  f.mask = parse_style(facts.mask);
  f.takes_causal = facts.takes_causal;
  f.always_causal = facts.always_causal;
  f.takes_window = facts.takes_window;
  f.scale = facts.scale;
  f.head_size = facts.head_size;
  f.kv_heads = facts.kv_heads;
  f.window = facts.window;
  f.rope = parse_rope(facts.rope, facts.rope_base);
  f.time_limit = facts.time_limit;
  f.forward = [adapter](const doctor::AttentionCall& call) {
    return guarded([&] {
      const nb::tuple answer = nb::cast<nb::tuple>(adapter.attr("forward")(*arguments_of(call)));
      return doctor::AttentionAnswer{tensor_or_nothing(answer[0], "out"),
                                     tensor_or_nothing(answer[1], "weights"),
                                     nb::cast<std::string>(answer[2])};
    });
  };
  if (!adapter.attr("backward").is_none()) {
    f.backward = [adapter](const doctor::AttentionCall& call, const Tensor& dout) {
      return guarded([&] {
        const nb::tuple g =
            nb::cast<nb::tuple>(adapter.attr("backward")(*arguments_of(call), export_numpy(dout)));
        ops::AttentionGradients gradients;
        gradients.dq = tensor_or_nothing(g[0], "dq");
        gradients.dk = tensor_or_nothing(g[1], "dk");
        gradients.dv = tensor_or_nothing(g[2], "dv");
        return gradients;
      });
    };
  }
  if (!adapter.attr("peak_bytes").is_none()) {
    f.peak_bytes = [adapter](const doctor::AttentionCall& call) {
      return guarded(
          [&] { return nb::cast<std::int64_t>(adapter.attr("peak_bytes")(*arguments_of(call))); });
    };
  }
  if (!adapter.attr("reseed").is_none()) {
    f.reseed = [adapter](std::uint64_t seed) {
      guarded([&] { return nb::object(adapter.attr("reseed")(seed)); });
    };
  }
  return text_of([&] { return doctor::check_attention(f); });
}

struct ModelFacts {
  std::int64_t vocab_size, max_length;
  std::optional<bool> causal;
  bool takes_padding;
  double time_limit;
};

// `adapter`: forward(ids, mask) -> hidden; and, or None, cached(ids, mask, chunks), widened(ids,
// mask) -> hidden in fp64, attention(ids, mask) -> weights of each layer, roughness(ids, mask),
// without_gradient(ids, mask) -> names, reseed(seed).
ReportText check_model(nb::object adapter, const ModelFacts& facts) {
  doctor::ModelUnderTest f;
  f.vocab_size = facts.vocab_size;
  f.max_length = facts.max_length;
  f.causal = facts.causal;
  f.takes_padding = facts.takes_padding;
  f.time_limit = facts.time_limit;
  f.forward = [adapter](const doctor::ModelCall& call) {
    return guarded([&] {
      return tensor_or_nothing(
          adapter.attr("forward")(export_numpy(call.ids), export_numpy(call.attention_mask)),
          "output");
    });
  };
  if (!adapter.attr("cached").is_none()) {
    f.cached = [adapter](const doctor::ModelCall& call, const std::vector<std::int64_t>& chunks) {
      return guarded([&] {
        return tensor_or_nothing(adapter.attr("cached")(export_numpy(call.ids),
                                                        export_numpy(call.attention_mask), chunks),
                                 "output");
      });
    };
  }
  if (!adapter.attr("widened").is_none()) {
    f.widened = [adapter](const doctor::ModelCall& call) {
      return guarded([&] {
        return tensor_or_nothing(
            adapter.attr("widened")(export_numpy(call.ids), export_numpy(call.attention_mask)),
            "output");
      });
    };
  }
  if (!adapter.attr("roughness").is_none()) {
    f.roughness = [adapter](const doctor::ModelCall& call) {
      return guarded([&] {
        return nb::cast<double>(
            adapter.attr("roughness")(export_numpy(call.ids), export_numpy(call.attention_mask)));
      });
    };
  }
  if (!adapter.attr("attention").is_none()) {
    f.attention = [adapter](const doctor::ModelCall& call) {
      return guarded([&] {
        std::vector<Tensor> layers;
        const nb::object maps =
            adapter.attr("attention")(export_numpy(call.ids), export_numpy(call.attention_mask));
        for (const nb::handle layer : maps) layers.push_back(tensor_or_nothing(layer, "weights"));
        return layers;
      });
    };
  }
  if (!adapter.attr("without_gradient").is_none()) {
    f.without_gradient = [adapter](const doctor::ModelCall& call) {
      return guarded([&] {
        return nb::cast<std::vector<std::string>>(adapter.attr("without_gradient")(
            export_numpy(call.ids), export_numpy(call.attention_mask)));
      });
    };
  }
  if (!adapter.attr("reseed").is_none()) {
    f.reseed = [adapter](std::uint64_t seed) {
      guarded([&] { return nb::object(adapter.attr("reseed")(seed)); });
    };
  }
  return text_of([&] { return doctor::check_model(f); });
}

}  // namespace

void bind_doctor(nb::module_& m) {
  m.def(
      "_check_attention",
      [](nb::object adapter, std::optional<std::string> mask, bool takes_causal, bool always_causal,
         bool takes_window, std::optional<double> scale, std::optional<std::int64_t> head_size,
         std::optional<std::int64_t> kv_heads, std::optional<std::int64_t> window,
         std::optional<std::string> rope, double rope_base, double time_limit) {
        return check_attention(adapter, {mask, takes_causal, always_causal, takes_window, scale,
                                         head_size, kv_heads, window, rope, rope_base, time_limit});
      },
      nb::arg("adapter"), nb::kw_only(), nb::arg("mask").none(), nb::arg("takes_causal"),
      nb::arg("always_causal"), nb::arg("takes_window"), nb::arg("scale").none(),
      nb::arg("head_size").none(), nb::arg("kv_heads").none(), nb::arg("window").none(),
      nb::arg("rope").none(), nb::arg("rope_base"), nb::arg("time_limit"));
  m.def(
      "_check_model",
      [](nb::object adapter, std::int64_t vocab_size, std::int64_t max_length,
         std::optional<bool> causal, bool takes_padding, double time_limit) {
        return check_model(adapter, {vocab_size, max_length, causal, takes_padding, time_limit});
      },
      nb::arg("adapter"), nb::kw_only(), nb::arg("vocab_size"), nb::arg("max_length"),
      nb::arg("causal").none(), nb::arg("takes_padding"), nb::arg("time_limit"));
  m.def(
      "_check_path",
      [](const std::filesystem::path& path) {
        return text_of([&] {
          const nb::gil_scoped_release no_gil;
          return doctor::check_path(path);
        });
      },
      nb::arg("path"));
  m.def("_check_machine", [] {
    return text_of([] {
      const nb::gil_scoped_release no_gil;
      return doctor::check_machine();
    });
  });
}

}  // namespace qkv::python
