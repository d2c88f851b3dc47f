// The module qkv._core.
#include "qkv/version.h"

#include "bindings.h"

NB_MODULE(_core, m) {
  m.attr("__version__") = qkv::version();
  qkv::python::bind_errors(m);
  qkv::python::bind_masks(m);
  qkv::python::bind_attention(m);
  qkv::python::bind_text(m);
  qkv::python::bind_models(m);
  qkv::python::bind_block(m);
  qkv::python::bind_doctor(m);
  qkv::python::bind_encoders(m);
  qkv::python::bind_generation(m);
}
