// Typed masks.
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "qkv/mask.h"

#include "arrays.h"
#include "base/check.h"
#include "bindings.h"

namespace nb = nanobind;

namespace qkv::python {
void bind_masks(nb::module_& m) {
  nb::class_<Mask>(m, "Mask",
                   "What each query may attend to. Made by the functions below, joined with &.\n\n"
                   "Mask() shows everything. Arrays are shared, not copied: leave them as they are "
                   "while the mask is in use.")
      .def(nb::init<>())
      .def_static(
          "keep",
          [](nb::handle a) { return Mask::keep(import_array(a, "Mask::keep", "keep").tensor()); },
          nb::arg("keep"),
          "True (nonzero): the query may attend to the key. bool or integers of shape [N, S], "
          "[B, 1, 1, S], [B, 1, N, S] or [B, H, N, S]; extents of 1 broadcast.")
      .def_static(
          "block",
          [](nb::handle a) {
            return Mask::block(import_array(a, "Mask::block", "block").tensor());
          },
          nb::arg("block"),
          "True (nonzero): the query may not attend to the key. Shapes as for keep.")
      .def_static(
          "additive",
          [](nb::handle a) {
            return Mask::additive(import_array(a, "Mask::additive", "bias").tensor());
          },
          nb::arg("bias"),
          "Added to the scaled scores; -inf blocks. float32 or float64, shapes as for keep.")
      .def_static("causal", &Mask::causal,
                  "Query i sees keys j <= i + S - N: the last query sees the last key.")
      .def_static("window", nb::overload_cast<std::int64_t>(&Mask::window), nb::arg("n"),
                  "|i + S - N - j| < n, n >= 1; with causal the query and its n - 1 predecessors.")
      .def_static("window", nb::overload_cast<std::int64_t, std::int64_t>(&Mask::window),
                  nb::arg("left"), nb::arg("right"),
                  "-left <= j - (i + S - N) <= right; -1: no limit on that side.")
      .def_static(
          "window_with_globals", &Mask::window_with_globals, nb::arg("left"), nb::arg("right"),
          nb::arg("tokens"),
          "The window, but these keys are seen by every query, and see every key themselves.")
      .def_static(
          "alibi", &Mask::alibi, nb::arg("slopes"),
          "Adds -slopes[h] |i + S - N - j|: one slope for each head, as of alibi_slopes(heads).")
      .def_static(
          "lengths",
          [](nb::handle n) {
            return Mask::lengths(import_integers(n, "Mask::lengths", "lengths", "[B]"));
          },
          nb::arg("lengths"),
          "Keys j >= lengths[b] are hidden. Whole numbers, one for each sequence.")
      .def(
          "__and__", [](const Mask& a, const Mask& b) { return a & b; }, nb::is_operator(),
          "Intersects what is visible and adds biases.")
      .def("__repr__", [](const Mask& mask) { return "qkv.Mask(" + mask.str() + ")"; });
  m.def("alibi_slopes", &alibi_slopes, nb::arg("heads"), "The slopes of the ALiBi paper.");
}

}  // namespace qkv::python
