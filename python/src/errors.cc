// Errors of the library as exceptions with the same words: the classes are qkv/errors.py.
#include <exception>

#include "qkv/error.h"

#include "bindings.h"

namespace nb = nanobind;

namespace qkv::python {
namespace {

void translate(const std::exception_ptr& pointer, void*) {
  try {
    std::rethrow_exception(pointer);
  } catch (const Error& error) {
    try {
      const nb::object made =
          nb::module_::import_("qkv.errors")
              .attr("_make")(error_code_name(error.code()), error.where().c_str(), error.what());
      PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(made.ptr())), made.ptr());
    } catch (nb::python_error& failed) {
      failed.restore();
    }
  }
}

}  // namespace

void bind_errors(nb::module_&) { nb::register_exception_translator(translate); }

}  // namespace qkv::python
