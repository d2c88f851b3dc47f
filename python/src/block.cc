// One encoder block with its backward pass.
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "qkv/encoder_block.h"

#include "arrays.h"
#include "base/check.h"
#include "bindings.h"

namespace nb = nanobind;

namespace qkv::python {
namespace {

constexpr const char* kWhere = "EncoderBlock";

DType dtype_named(const std::string& name) {
  if (name == "float32") return DType::kFloat32;
  if (name == "float64") return DType::kFloat64;
  fail<ArgumentError>(kWhere, "expected dtype 'float32' or 'float64', got '{}'", name);
}

EncoderBlock make_block(const nb::kwargs& keywords) {
  EncoderBlockOptions options;
  std::uint64_t seed = 0;
  std::string dtype = "float32";
  const auto take = [&](const char* key, nb::handle value, auto& into) {
    if (!nb::try_cast(value, into))
      type_error(fmt::format("[{}] expected another type for {}, got {}", kWhere, key,
                             nb::repr(value).c_str()));
  };
  for (const auto& [name, value] : keywords) {
    const auto key = nb::cast<std::string>(name);
    const char* k = key.c_str();
    if (key == "d_model")
      take(k, value, options.d_model);
    else if (key == "num_heads")
      take(k, value, options.num_heads);
    else if (key == "num_kv_heads")
      take(k, value, options.num_kv_heads);
    else if (key == "d_ff")
      take(k, value, options.d_ff);
    else if (key == "norm")
      take(k, value, options.norm);
    else if (key == "norm_placement")
      take(k, value, options.norm_placement);
    else if (key == "activation")
      take(k, value, options.activation);
    else if (key == "attention")
      take(k, value, options.attention);
    else if (key == "window")
      take(k, value, options.window);
    else if (key == "rope")
      take(k, value, options.rope);
    else if (key == "bias")
      take(k, value, options.bias);
    else if (key == "seed")
      take(k, value, seed);
    else if (key == "dtype")
      take(k, value, dtype);
    else
      type_error(fmt::format("[{}] expected an option of the block, got '{}'", kWhere, key));
  }
  return {options, seed, dtype_named(dtype)};
}

// [T, C] as the block reads it: dense.
Tensor import_dense(nb::handle object, const char* name) {
  return import_array(object, kWhere, name).tensor().contiguous();
}

nb::object forward(EncoderBlock& block, nb::handle x, const std::vector<std::int64_t>& lengths) {
  const Tensor input = import_dense(x, "x");
  const RaggedLayout layout = RaggedLayout::from_lengths(lengths);
  Tensor out;
  {
    const nb::gil_scoped_release no_gil;
    out = block.forward(input, layout);
  }
  return export_numpy(out);
}

nb::object backward(EncoderBlock& block, nb::handle dy) {
  const Tensor gradient = import_dense(dy, "dy");
  Tensor out;
  {
    const nb::gil_scoped_release no_gil;
    out = block.backward(gradient);
  }
  return export_numpy(out);
}

}  // namespace

void bind_block(nb::module_& m) {
  nb::class_<EncoderBlock>(m, "EncoderBlock",
                           "One encoder block on its own. Options as in the [model] table of a "
                           "configuration: d_model, num_heads,\n"
                           "num_kv_heads, d_ff, norm, norm_placement, activation, attention, "
                           "window, rope, bias; and seed, dtype.\n"
                           "Not for several threads at once.")
      .def("__init__",
           [](EncoderBlock* self, const nb::kwargs& keywords) {
             new (self) EncoderBlock(make_block(keywords));
           })
      .def("forward", &forward, nb::arg("x"), nb::arg("lengths"),
           "x: [T, C], packed sequences of these lengths -> [T, C]. Keeps what backward needs.")
      .def("backward", &backward, nb::arg("dy"),
           "From the gradient of the last forward's output to that of its input, [T, C].")
      .def("parameter_names", &EncoderBlock::parameter_names)
      .def(
          "parameter",
          [](const EncoderBlock& block, const std::string& name) {
            return export_numpy(block.parameter(name));
          },
          nb::arg("name"), "The block's own memory: writing to it changes the block.")
      .def(
          "gradient",
          [](const EncoderBlock& block, const std::string& name) {
            return export_numpy(block.gradient(name));
          },
          nb::arg("name"), "Of the last backward pass; the next one overwrites it.");
}

}  // namespace qkv::python
