// The parts of the module qkv._core.
#pragma once

#include <nanobind/nanobind.h>

namespace qkv::python {

void bind_errors(nanobind::module_& m);
void bind_masks(nanobind::module_& m);
void bind_attention(nanobind::module_& m);
void bind_text(nanobind::module_& m);
void bind_models(nanobind::module_& m);
void bind_block(nanobind::module_& m);
void bind_doctor(nanobind::module_& m);
void bind_encoders(nanobind::module_& m);
void bind_generation(nanobind::module_& m);

}  // namespace qkv::python
