#include "arrays.h"

#include <cstring>
#include <string>

#include <fmt/format.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/vector.h>

#include "base/check.h"

namespace nb = nanobind;

namespace qkv::python {
namespace {

// The two forms of a tensor that DLPack hands over (dmlc/dlpack, versions before 1.0 and since).
struct ManagedTensor {
  nb::dlpack::dltensor tensor;
  void* context;
  void (*deleter)(ManagedTensor*);
};
struct VersionedTensor {
  std::uint32_t major, minor;
  void* context;
  void (*deleter)(VersionedTensor*);
  std::uint64_t flags;
  nb::dlpack::dltensor tensor;
};
constexpr std::int32_t kCpu = 1;  // kDLCPU

// Calls `release` with the GIL, from whatever thread drops the last reference; not after the
// interpreter has ended, when the memory goes with the process.
template <class F>
std::shared_ptr<const void> make_owner(const void* pointer, F release) {
  return {pointer, [release](const void*) {
            if (!nb::is_alive()) return;
            const nb::gil_scoped_acquire gil;
            release();
          }};
}

std::optional<DType> dtype_of_code(nb::dlpack::dtype_code code, int bits) {
  using Code = nb::dlpack::dtype_code;
  switch (code) {
    case Code::Float:
      if (bits == 64) return DType::kFloat64;
      if (bits == 32) return DType::kFloat32;
      if (bits == 16) return DType::kFloat16;
      return std::nullopt;
    case Code::Bfloat:
      return bits == 16 ? std::optional(DType::kBFloat16) : std::nullopt;
    case Code::Bool:
      return bits == 8 ? std::optional(DType::kBool) : std::nullopt;
    case Code::Int:
    case Code::UInt:  // for masks and lengths, whose values are small
      if (code == Code::UInt && bits == 8) return DType::kUInt8;
      if (bits == 64) return DType::kInt64;
      if (bits == 32) return DType::kInt32;
      if (bits == 16) return DType::kInt16;
      if (bits == 8) return DType::kInt8;
      return std::nullopt;
    default:
      return std::nullopt;
  }
}

// Element types of the buffer protocol (struct module), native byte order.
std::optional<DType> dtype_of_format(const char* format, std::int64_t bytes) {
  using Code = nb::dlpack::dtype_code;
  if (format == nullptr) return DType::kUInt8;
  if (*format == '@' || *format == '=' || *format == '<') ++format;
  if (format[0] == '\0' || format[1] != '\0') return std::nullopt;
  const int bits = static_cast<int>(8 * bytes);
  switch (*format) {
    case 'd':
    case 'f':
    case 'e':
      return dtype_of_code(Code::Float, bits);
    case '?':
      return DType::kBool;
    case 'b':
    case 'h':
    case 'i':
    case 'l':
    case 'q':
    case 'n':
      return dtype_of_code(Code::Int, bits);
    case 'B':
    case 'H':
    case 'I':
    case 'L':
    case 'Q':
    case 'N':
      return dtype_of_code(Code::UInt, bits);
    default:
      return std::nullopt;
  }
}

std::string type_name_of(nb::handle object) { return nb::type_name(object.type()).c_str(); }

[[noreturn]] void wrong_element(const char* where, const char* name, const std::string& got) {
  type_error(
      fmt::format("[{}] expected {} of floating, integer or boolean elements of this machine, "
                  "got {}",
                  where, name, got));
}

// `array` with strides in bytes, brought into the form that Array promises.
Array settle(Array array, bool bytes) {
  const auto size = static_cast<std::int64_t>(dtype_size(array.dtype));
  bool fits = reinterpret_cast<std::uintptr_t>(array.data) % static_cast<std::uintptr_t>(size) == 0;
  bool empty = false;
  for (std::size_t i = 0; i < array.shape.size(); ++i) {
    empty |= array.shape[i] == 0;
    if (!bytes) array.strides[i] *= size;
    if (array.shape[i] <= 1) array.strides[i] = 0;
    fits &= array.strides[i] >= 0 && array.strides[i] % size == 0;
  }
  if (!fits && !empty) {
    // Any strides of bytes are strides of elements of one byte: dense_copy moves them by
    // themselves.
    Array as_bytes = array;
    as_bytes.dtype = DType::kUInt8;
    as_bytes.shape.push_back(size);
    as_bytes.strides.push_back(1);
    Array copy = dense_copy(as_bytes);
    copy.dtype = array.dtype;
    copy.shape.pop_back();
    copy.strides.pop_back();
    for (std::int64_t& stride : copy.strides) stride /= size;
    copy.library = array.library;
    return copy;
  }
  for (std::int64_t& stride : array.strides) stride /= size;
  return array;
}

// NumPy's bfloat16 is of the package ml_dtypes, and the buffer protocol has no letter for it.
bool is_numpy_bfloat16(nb::handle object) {
  if (!nb::hasattr(object, "dtype") || !nb::hasattr(object, "view")) return false;
  return nb::object(object.attr("dtype").attr("name")).equal(nb::str("bfloat16"));
}

Array from_buffer(nb::handle object, const char* where, const char* name) {
  auto view = std::make_unique<Py_buffer>();
  if (PyObject_GetBuffer(object.ptr(), view.get(), PyBUF_RECORDS_RO) != 0) {
    nb::python_error error;
    if (!is_numpy_bfloat16(object)) throw error;
    Array array = from_buffer(object.attr("view")("int16"), where, name);
    array.dtype = DType::kBFloat16;
    return array;
  }
  Py_buffer* const buffer = view.release();
  Array array;
  array.owner = make_owner(buffer->buf, [buffer] {
    PyBuffer_Release(buffer);
    delete buffer;
  });
  const auto dtype = dtype_of_format(buffer->format, buffer->itemsize);
  if (!dtype) {
    wrong_element(where, name, fmt::format("a buffer of format '{}'", buffer->format));
  }
  array.data = buffer->buf;
  array.dtype = *dtype;
  array.shape.assign(buffer->shape, buffer->shape + buffer->ndim);
  array.strides.assign(buffer->strides, buffer->strides + buffer->ndim);
  return settle(std::move(array), /*bytes=*/true);
}

Array from_dltensor(const nb::dlpack::dltensor& t, std::shared_ptr<const void> owner,
                    const char* where, const char* name) {
  require<ShapeError>(t.device.device_type == kCpu, where,
                      "expected {} on the CPU, got DLPack device type {}: copy it to the CPU first",
                      name, t.device.device_type);
  const auto dtype = dtype_of_code(static_cast<nb::dlpack::dtype_code>(t.dtype.code), t.dtype.bits);
  if (!dtype || t.dtype.lanes != 1) {
    wrong_element(where, name,
                  fmt::format("DLPack type code {} of {} bits", t.dtype.code, t.dtype.bits));
  }
  Array array;
  array.owner = std::move(owner);
  array.data = static_cast<char*>(t.data) + t.byte_offset;
  array.dtype = *dtype;
  array.shape.assign(t.shape, t.shape + t.ndim);
  array.strides.resize(array.shape.size());
  std::int64_t step = 1;
  for (std::size_t i = array.shape.size(); i-- > 0;) {
    array.strides[i] = t.strides != nullptr ? t.strides[i] : step;
    step *= array.shape[i];
  }
  return settle(std::move(array), /*bytes=*/false);
}

// A consumed capsule's tensor: its deleter runs when the last reference is dropped.
template <class Managed>
Array consume(nb::handle capsule, const char* name_of, const char* used, const char* where,
              const char* name) {
  auto* managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule.ptr(), name_of));
  if (managed == nullptr) nb::raise_python_error();
  if (PyCapsule_SetName(capsule.ptr(), used) != 0) nb::raise_python_error();
  auto owner = make_owner(managed, [managed] {
    if (managed->deleter != nullptr) managed->deleter(managed);
  });
  return from_dltensor(managed->tensor, std::move(owner), where, name);
}

Array from_capsule(nb::handle capsule, const char* where, const char* name) {
  if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned")) {
    return consume<VersionedTensor>(capsule, "dltensor_versioned", "used_dltensor_versioned", where,
                                    name);
  }
  if (PyCapsule_IsValid(capsule.ptr(), "dltensor")) {
    return consume<ManagedTensor>(capsule, "dltensor", "used_dltensor", where, name);
  }
  type_error(fmt::format(
      "[{}] expected {} as a fresh DLPack capsule, got one that was used already", where, name));
}

// torch.Tensor once PyTorch has been imported by somebody, else null.
PyTypeObject* tensor_type() {
  static PyTypeObject* type = nullptr;
  if (type == nullptr) {
    const nb::object modules = nb::module_::import_("sys").attr("modules");
    if (!nb::cast<bool>(modules.attr("__contains__")("torch"))) return nullptr;
    const nb::object torch = modules["torch"];
    if (!nb::hasattr(torch, "Tensor")) return nullptr;  // in the middle of its import
    type = reinterpret_cast<PyTypeObject*>(nb::object(torch.attr("Tensor")).release().ptr());
  }
  return type;
}

bool is_torch(nb::handle object) {
  PyTypeObject* const type = tensor_type();
  return type != nullptr && PyType_IsSubtype(Py_TYPE(object.ptr()), type) != 0;
}

// Plain tensors skip the checks of Tensor.__dlpack__, which cost ten times the rest.
nb::object torch_capsule(nb::handle tensor) {
  if (nb::cast<bool>(tensor.attr("requires_grad")) || nb::cast<bool>(tensor.attr("is_neg")()))
    return {};
  static PyObject* const to_dlpack =
      nb::object(nb::module_::import_("torch.utils.dlpack").attr("to_dlpack")).release().ptr();
  return nb::handle(to_dlpack)(tensor);
}

Array from_dlpack(nb::handle object, const char* where, const char* name) {
  const bool torch = is_torch(object);
  if (torch) {
    const nb::object device = object.attr("device");
    if (!device.attr("type").equal(nb::str("cpu"))) {
      fail<ShapeError>(where, "expected {} on the CPU, got {}: copy it to the CPU first", name,
                       nb::str(device).c_str());
    }
  } else {
    const nb::object device = object.attr("__dlpack_device__")();
    const int type = nb::cast<int>(nb::int_(device[0]));
    require<ShapeError>(type == kCpu, where,
                        "expected {} on the CPU, got DLPack device type {}: copy it to the CPU "
                        "first",
                        name, type);
  }
  nb::object capsule;
  if (torch) {
    require<UnsupportedError>(!nb::cast<bool>(object.attr("requires_grad")), where,
                              "expected {} without a gradient, got a tensor that requires one: use "
                              "qkv.torch.scaled_dot_product_attention, or detach()",
                              name);
    capsule = torch_capsule(object);
  }
  if (!capsule.is_valid()) {
    try {
      capsule = object.attr("__dlpack__")(nb::arg("max_version") = nb::make_tuple(1, 0));
    } catch (nb::python_error& error) {
      if (!error.matches(PyExc_TypeError)) throw;
      capsule = object.attr("__dlpack__")();  // a library from before version 1.0
    }
  }
  Array array = from_capsule(capsule, where, name);
  array.library = torch ? Library::kTorch : Library::kOther;
  return array;
}

}  // namespace

void type_error(const std::string& message) { throw nb::type_error(message.c_str()); }

std::string Array::shape_text() const {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i)
    text += fmt::format("{}{}", i > 0 ? ", " : "", shape[i]);
  return text + "]";
}

Tensor Array::tensor() const {
  return Tensor::wrap_strided(data, Shape(shape), Shape(strides), dtype, owner);
}

Array dense_copy(const Array& array) {
  const auto size = static_cast<std::int64_t>(dtype_size(array.dtype));
  Array copy = array;
  std::int64_t count = 1;
  for (std::size_t i = array.shape.size(); i-- > 0;) {
    copy.strides[i] = count;
    require<ShapeError>(!__builtin_mul_overflow(count, array.shape[i], &count), "array",
                        "expected an array that fits in memory, got shape {}", array.shape_text());
  }
  const Tensor memory = Tensor::empty({count}, array.dtype);
  copy.data = memory.raw();
  copy.owner = std::make_shared<Tensor>(memory);
  const nb::gil_scoped_release no_gil;  // the owner keeps the source alive
  const int rank = array.rank();
  std::vector<std::int64_t> index(array.shape.size(), 0);
  auto* to = static_cast<char*>(copy.data);
  const auto* from = static_cast<const char*>(array.data);
  const std::int64_t row = rank == 0 ? 1 : array.shape.back(),
                     step = rank == 0 ? 1 : array.strides.back();
  for (std::int64_t done = 0; done < count; done += row) {
    std::int64_t offset = 0;
    for (int i = 0; i < rank - 1; ++i)
      offset += index[static_cast<std::size_t>(i)] * array.strides[static_cast<std::size_t>(i)];
    const char* source = from + offset * size;
    if (step == 1) {
      std::memcpy(to, source, static_cast<std::size_t>(row * size));
    } else {
      for (std::int64_t j = 0; j < row; ++j)
        std::memcpy(to + j * size, source + j * step * size, static_cast<std::size_t>(size));
    }
    to += row * size;
    for (int i = rank - 2; i >= 0; --i) {
      const auto at = static_cast<std::size_t>(i);
      if (++index[at] < array.shape[at]) break;
      index[at] = 0;
    }
  }
  return copy;
}

Array import_array(nb::handle object, const char* where, const char* name) {
  if (PyObject_CheckBuffer(object.ptr())) return from_buffer(object, where, name);
  if (PyCapsule_CheckExact(object.ptr())) return from_capsule(object, where, name);
  if (nb::hasattr(object, "__dlpack__")) return from_dlpack(object, where, name);
  type_error(fmt::format("[{}] expected {} as an array (NumPy, or anything with DLPack), got {}",
                         where, name, type_name_of(object)));
}

std::vector<std::int64_t> import_integers(nb::handle object, const char* where, const char* name,
                                          const char* shape) {
  std::vector<std::int64_t> numbers;
  if (!PyObject_CheckBuffer(object.ptr()) && !nb::hasattr(object, "__dlpack__")) {
    if (nb::try_cast(object, numbers)) return numbers;
    type_error(fmt::format("[{}] expected whole numbers as {}, got {}", where, name,
                           nb::repr(object).c_str()));
  }
  const Array array = import_array(object, where, name);
  require<ShapeError>(array.rank() == 1, where, "expected {} of shape {}, got {}", name, shape,
                      array.shape_text());
  if (is_floating(array.dtype) || array.dtype == DType::kBool) {
    type_error(fmt::format("[{}] expected whole numbers as {}, got {}", where, name,
                           dtype_name(array.dtype)));
  }
  const Tensor wide = array.tensor().to(DType::kInt64).contiguous();
  numbers.assign(wide.data<std::int64_t>(), wide.data<std::int64_t>() + wide.numel());
  return numbers;
}

std::optional<Array> import_optional(nb::handle object, const char* where, const char* name) {
  if (object.is_none()) return std::nullopt;
  return import_array(object, where, name);
}

nb::object export_array(const Tensor& tensor, const std::vector<std::int64_t>& shape,
                        const std::vector<std::int64_t>& strides, Library library,
                        nb::handle like) {
  const nb::capsule owner(new Tensor(tensor),
                          [](void* held) noexcept { delete static_cast<Tensor*>(held); });
  const std::vector<std::size_t> extents(shape.begin(), shape.end());
  const nb::dlpack::dtype type = [&] {
    using Code = nb::dlpack::dtype_code;
    const auto bits = static_cast<std::uint8_t>(8 * dtype_size(tensor.dtype()));
    const Code code = tensor.dtype() == DType::kBFloat16 ? Code::Bfloat
                      : is_floating(tensor.dtype())      ? Code::Float
                                                         : Code::Int;
    return nb::dlpack::dtype{static_cast<std::uint8_t>(code), bits, 1};
  }();
  const auto make = [&](auto array) { return nb::cast(array, nb::rv_policy::reference); };
  void* const data = tensor.raw();
  if (library == Library::kNumpy) {
    const bool brain = tensor.dtype() == DType::kBFloat16;  // has no letter of its own in NumPy
    const nb::dlpack::dtype code = brain ? nb::dtype<std::int16_t>() : type;
    const nb::object array = make(
        nb::ndarray<nb::numpy>(data, extents.size(), extents.data(), owner, strides.data(), code));
    return brain ? nb::object(array.attr("view")(like.attr("dtype"))) : array;
  }
  if (library == Library::kTorch) {  // from a capsule: a third of the time that an array takes
    static PyObject* const from_dlpack =
        nb::object(nb::module_::import_("torch.utils.dlpack").attr("from_dlpack")).release().ptr();
    return nb::handle(from_dlpack)(
        make(nb::ndarray<>(data, extents.size(), extents.data(), owner, strides.data(), type)));
  }
  const nb::object exported = make(nb::ndarray<nb::array_api>(data, extents.size(), extents.data(),
                                                              owner, strides.data(), type));
  if (!nb::hasattr(like, "__array_namespace__")) return exported;
  return like.attr("__array_namespace__")().attr("from_dlpack")(exported);
}

nb::object export_numpy(const Tensor& tensor) {
  std::vector<std::int64_t> shape, strides;
  for (int i = 0; i < tensor.rank(); ++i) {
    shape.push_back(tensor.dim(i));
    strides.push_back(tensor.stride(i));
  }
  return export_array(tensor, shape, strides, Library::kNumpy, nb::handle());
}

}  // namespace qkv::python
