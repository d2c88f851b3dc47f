// Arrays of Python as tensors and back, without copies where that is possible.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <nanobind/nanobind.h>

#include "qkv/tensor.h"

namespace qkv::python {

// Who made an array: results are given back in the same form.
enum class Library { kNumpy, kTorch, kOther };

// An array of somebody else's, read-only or not. Alive as long as `owner`, whatever other threads
// do with their references to it.
struct Array {
  void* data = nullptr;
  DType dtype = DType::kFloat32;
  std::vector<std::int64_t> shape, strides;  // strides in elements, >= 0
  std::shared_ptr<const void> owner;
  Library library = Library::kNumpy;

  int rank() const { return static_cast<int>(shape.size()); }
  std::string shape_text() const;  // "[2, 3]"
  // ShapeError for more dimensions than a tensor has.
  Tensor tensor() const;
};

// Takes what has the buffer protocol (NumPy) or DLPack on the CPU. TypeError for anything else and
// for element types without a counterpart; ShapeError for arrays of other devices. Negative
// strides, and addresses or strides that are not multiples of the element, are copied. `where` and
// `name` stand in messages. Holds the GIL.
Array import_array(nanobind::handle object, const char* where, const char* name);

// Like import_array, but nothing for None.
std::optional<Array> import_optional(nanobind::handle object, const char* where, const char* name);

// Whole numbers from an array of one dimension or a sequence; `shape` says in messages what it is.
std::vector<std::int64_t> import_integers(nanobind::handle object, const char* where,
                                          const char* name, const char* shape);

// A strided copy of `array` in dense memory of our own.
Array dense_copy(const Array& array);

// An array of `library` over the memory of `tensor`, seen with the given shape and strides (in
// elements). Writable; keeps the tensor alive. `like`: an array whose library makes the result when
// that is neither NumPy nor PyTorch.
nanobind::object export_array(const Tensor& tensor, const std::vector<std::int64_t>& shape,
                              const std::vector<std::int64_t>& strides, Library library,
                              nanobind::handle like);
// The same with the tensor's own shape and strides, for NumPy.
nanobind::object export_numpy(const Tensor& tensor);

[[noreturn]] void type_error(const std::string& message);

}  // namespace qkv::python
