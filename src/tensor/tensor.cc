#include "qkv/tensor.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <limits>

#include <fmt/core.h>

#include "base/check.h"
#include "base/convert.h"
#include "tensor/storage.h"

namespace qkv::inline v0 {
namespace {

Shape row_major_strides(const Shape& shape) {
  Shape strides = shape;
  std::uint64_t step = 1;  // unsigned: beside an extent of 0 the others may be of any size
  for (int i = shape.rank() - 1; i >= 0; --i) {
    strides[i] = static_cast<std::int64_t>(step);
    step *= static_cast<std::uint64_t>(shape[i]);
  }
  return strides;
}

std::size_t checked_bytes(const Shape& shape, DType dtype) {
  std::int64_t count = 1;
  for (int i = 0; i < shape.rank(); ++i) {
    require<ShapeError>(shape[i] >= 0, "tensor", "expected extents >= 0, got {}", shape.str());
    require<ShapeError>(!__builtin_mul_overflow(count, shape[i], &count), "tensor",
                        "expected a shape that fits in memory, got {}", shape.str());
  }
  std::int64_t bytes = 0;
  require<ShapeError>(
      !__builtin_mul_overflow(count, static_cast<std::int64_t>(dtype_size(dtype)), &bytes),
      "tensor", "expected a shape that fits in memory, got {}", shape.str());
  return static_cast<std::size_t>(bytes);
}

void check_defined(const Tensor& tensor, const char* what) {
  require<ShapeError>(tensor.defined(), "tensor", "expected a tensor for {}, got an undefined one",
                      what);
}

// Calls f with a typed null pointer of the dtype's C++ type.
template <class F>
void with_type(DType dtype, F f) {
  switch (dtype) {
    case DType::kFloat64:
      return f(static_cast<double*>(nullptr));
    case DType::kFloat32:
      return f(static_cast<float*>(nullptr));
    case DType::kBFloat16:
      return f(static_cast<BFloat16*>(nullptr));
    case DType::kFloat16:
      return f(static_cast<Float16*>(nullptr));
    case DType::kInt64:
      return f(static_cast<std::int64_t*>(nullptr));
    case DType::kInt32:
      return f(static_cast<std::int32_t*>(nullptr));
    case DType::kInt16:
      return f(static_cast<std::int16_t*>(nullptr));
    case DType::kInt8:
      return f(static_cast<std::int8_t*>(nullptr));
    case DType::kUInt8:
      return f(static_cast<std::uint8_t*>(nullptr));
    case DType::kBool:
      return f(static_cast<bool*>(nullptr));
  }
}

template <class To, class From>
To convert(From x) {
  if constexpr (std::is_same_v<To, From>) {
    return x;
  } else if constexpr (std::is_same_v<From, BFloat16> || std::is_same_v<From, Float16>) {
    return convert<To>(to_float(x));
  } else if constexpr (std::is_same_v<To, BFloat16>) {
    return to_bfloat16(static_cast<float>(x));
  } else if constexpr (std::is_same_v<To, Float16>) {
    return to_float16(static_cast<float>(x));
  } else if constexpr (std::is_same_v<To, bool>) {
    return x != From{};
  } else {
    return static_cast<To>(x);
  }
}

// Walks two equally shaped strided views; f(destination offset, source offset) once per innermost
// row.
template <class F>
void walk_rows(const Shape& shape, const Shape& a, const Shape& b, F f) {
  const int rank = shape.rank();
  if (shape.numel() == 0) return;
  if (rank == 0) return f(0, 0);
  Shape index = shape;
  for (int i = 0; i < rank; ++i) index[i] = 0;
  for (;;) {
    std::int64_t x = 0, y = 0;
    for (int i = 0; i < rank - 1; ++i) {
      x += index[i] * a[i];
      y += index[i] * b[i];
    }
    f(x, y);
    int i = rank - 2;
    for (; i >= 0 && ++index[i] == shape[i]; --i) index[i] = 0;
    if (i < 0) return;
  }
}

}  // namespace

const char* dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return "float64";
    case DType::kFloat32:
      return "float32";
    case DType::kBFloat16:
      return "bfloat16";
    case DType::kFloat16:
      return "float16";
    case DType::kInt64:
      return "int64";
    case DType::kInt32:
      return "int32";
    case DType::kInt16:
      return "int16";
    case DType::kInt8:
      return "int8";
    case DType::kUInt8:
      return "uint8";
    case DType::kBool:
      return "bool";
  }
  return "unknown";
}

Shape::Shape(std::initializer_list<std::int64_t> dims)
    : Shape(std::span<const std::int64_t>(dims.begin(), dims.size())) {}

Shape::Shape(std::span<const std::int64_t> dims) : rank_(static_cast<int>(dims.size())) {
  require<ShapeError>(dims.size() <= kMaxRank, "tensor", "expected at most {} dimensions, got {}",
                      int{kMaxRank}, dims.size());
  std::copy(dims.begin(), dims.end(), dims_.begin());
}

std::int64_t Shape::numel() const {
  std::int64_t n = 1;
  for (int i = 0; i < rank_; ++i) n *= (*this)[i];
  return n;
}

bool Shape::operator==(const Shape& other) const {
  return rank_ == other.rank_ &&
         std::equal(dims_.begin(), dims_.begin() + rank_, other.dims_.begin());
}

std::string Shape::str() const {
  // Without fmt: checks that hold form it too, in calls that take microseconds.
  std::array<char, 24 * kMaxRank> text;
  char* end = text.data();
  *end++ = '[';
  for (int i = 0; i < rank_; ++i) {
    if (i > 0) {
      *end++ = ',';
      *end++ = ' ';
    }
    end = std::to_chars(end, text.data() + text.size(), (*this)[i]).ptr;
  }
  *end++ = ']';
  return {text.data(), end};
}

Tensor Tensor::empty(const Shape& shape, DType dtype) {
  Tensor t;
  t.storage_ = std::make_shared<Storage>(checked_bytes(shape, dtype));
  t.data_ = t.storage_->data();
  t.shape_ = shape;
  t.strides_ = row_major_strides(shape);
  t.dtype_ = dtype;
  return t;
}

Tensor Tensor::zeros(const Shape& shape, DType dtype) {
  Tensor t = empty(shape, dtype);
  std::memset(t.data_, 0, t.nbytes());
  return t;
}

Tensor Tensor::wrap(void* data, const Shape& shape, DType dtype,
                    std::shared_ptr<const void> owner) {
  Tensor t;
  t.storage_ = std::make_shared<Storage>(data, checked_bytes(shape, dtype), std::move(owner));
  t.data_ = data;
  t.shape_ = shape;
  t.strides_ = row_major_strides(shape);
  t.dtype_ = dtype;
  return t;
}

Tensor Tensor::wrap_strided(void* data, const Shape& shape, const Shape& strides, DType dtype,
                            std::shared_ptr<const void> owner) {
  require<ShapeError>(shape.rank() == strides.rank(), "tensor",
                      "expected as many strides as extents, got {} and {}", strides.str(),
                      shape.str());
  Tensor t = wrap(data, shape, dtype, std::move(owner));
  t.strides_ = strides;
  return t;
}

template <class T>
Tensor Tensor::from(std::span<const T> values, const Shape& shape) {
  require<ShapeError>(static_cast<std::int64_t>(values.size()) == shape.numel(), "tensor",
                      "expected {} values for shape {}, got {}", shape.numel(), shape.str(),
                      values.size());
  Tensor t = empty(shape, dtype_of<T>());
  std::copy(values.begin(), values.end(), t.data<T>());
  return t;
}
template QKV_API Tensor Tensor::from(std::span<const double>, const Shape&);
template QKV_API Tensor Tensor::from(std::span<const float>, const Shape&);
template QKV_API Tensor Tensor::from(std::span<const std::int64_t>, const Shape&);
template QKV_API Tensor Tensor::from(std::span<const std::int32_t>, const Shape&);
template QKV_API Tensor Tensor::from(std::span<const std::uint8_t>, const Shape&);

void Tensor::wrong_dtype(DType asked) const {
  fail<ShapeError>("tensor", "expected a {} tensor, got {}{}", dtype_name(asked),
                   dtype_name(dtype_), defined() ? "" : " (undefined)");
}

bool Tensor::is_contiguous() const {
  std::int64_t step = 1;
  for (int i = rank() - 1; i >= 0; --i) {
    if (shape_[i] != 1 && strides_[i] != step) return numel() == 0;
    step *= shape_[i];
  }
  return true;
}

Tensor Tensor::reshape(const Shape& shape) const {
  check_defined(*this, "reshape");
  Shape wanted = shape;
  std::int64_t known = 1;
  int unknown = -1;
  for (int i = 0; i < shape.rank(); ++i) {
    if (shape[i] == -1 && unknown < 0) {
      unknown = i;
      continue;
    }
    require<ShapeError>(shape[i] >= 0 && !__builtin_mul_overflow(known, shape[i], &known), "tensor",
                        "expected extents >= 0, one of them -1 at most, got {}", shape.str());
  }
  if (unknown >= 0) {
    require<ShapeError>(known > 0 && numel() % known == 0, "tensor",
                        "expected a shape of {} elements, got {}", numel(), shape.str());
    wanted[unknown] = numel() / known;
  }
  require<ShapeError>(wanted.numel() == numel(), "tensor",
                      "expected a shape of {} elements, got {}", numel(), shape.str());
  require<ShapeError>(
      is_contiguous(), "tensor",
      "expected a contiguous tensor to reshape, got strides {} of shape {}; use contiguous()",
      strides_.str(), shape_.str());
  Tensor t = *this;
  t.shape_ = wanted;
  t.strides_ = row_major_strides(wanted);
  return t;
}

Tensor Tensor::narrow(int dimension, std::int64_t start, std::int64_t length) const {
  require<ShapeError>(dimension >= 0 && dimension < rank() && start >= 0 && length >= 0 &&
                          start <= shape_[dimension] && length <= shape_[dimension] - start,
                      "tensor",
                      "expected a range inside dimension {} of {}, got start {} length {}",
                      dimension, shape_.str(), start, length);
  Tensor t = *this;
  t.shape_[dimension] = length;
  t.data_ = static_cast<char*>(data_) +
            start * strides_[dimension] * static_cast<std::int64_t>(dtype_size(dtype_));
  return t;
}

Tensor Tensor::transpose(int a, int b) const {
  require<ShapeError>(a >= 0 && b >= 0 && a < rank() && b < rank(), "tensor",
                      "expected dimensions of {}, got {} and {}", shape_.str(), a, b);
  Tensor t = *this;
  std::swap(t.shape_[a], t.shape_[b]);
  std::swap(t.strides_[a], t.strides_[b]);
  return t;
}

Tensor Tensor::select(int dimension, std::int64_t index) const {
  const Tensor row = narrow(dimension, index, 1);
  std::array<std::int64_t, Shape::kMaxRank> shape{}, strides{};
  std::size_t n = 0;
  for (int i = 0; i < rank(); ++i) {
    if (i == dimension) continue;
    shape[n] = shape_[i];
    strides[n++] = strides_[i];
  }
  Tensor t = row;
  t.shape_ = Shape(std::span<const std::int64_t>(shape.data(), n));
  t.strides_ = Shape(std::span<const std::int64_t>(strides.data(), n));
  return t;
}

Tensor Tensor::clone() const {
  check_defined(*this, "clone");
  Tensor t = empty(shape_, dtype_);
  t.copy_from(*this);
  return t;
}

Tensor Tensor::contiguous() const {
  check_defined(*this, "contiguous");
  return is_contiguous() ? *this : clone();
}

Tensor Tensor::to(DType dtype) const {
  check_defined(*this, "to");
  if (dtype == dtype_) return *this;
  Tensor t = empty(shape_, dtype);
  t.copy_from(*this);
  return t;
}

void Tensor::copy_from(const Tensor& source) const {
  check_defined(*this, "copy_from");
  check_defined(source, "copy_from");
  require<ShapeError>(shape_ == source.shape_, "tensor", "expected a source of shape {}, got {}",
                      shape_.str(), source.shape_.str());
  if (dtype_ == source.dtype_ && is_contiguous() && source.is_contiguous()) {
    if (numel() > 0) std::memmove(data_, source.data_, nbytes());
    return;
  }
  const int rank = shape_.rank();
  const std::int64_t count = rank == 0 ? 1 : shape_[rank - 1];
  const std::int64_t step_to = rank == 0 ? 1 : strides_[rank - 1],
                     step_from = rank == 0 ? 1 : source.strides_[rank - 1];
  with_type(dtype_, [&](auto* to_type) {
    using To = std::remove_pointer_t<decltype(to_type)>;
    with_type(source.dtype_, [&](auto* from_type) {
      using From = std::remove_pointer_t<decltype(from_type)>;
      auto* to = static_cast<To*>(data_);
      const auto* from = static_cast<const From*>(source.data_);
      walk_rows(shape_, strides_, source.strides_, [&](std::int64_t x, std::int64_t y) {
        for (std::int64_t i = 0; i < count; ++i)
          to[x + i * step_to] = convert<To>(from[y + i * step_from]);
      });
    });
  });
}

void Tensor::fill(double value) const {
  check_defined(*this, "fill");
  const int rank = shape_.rank();
  const std::int64_t count = rank == 0 ? 1 : shape_[rank - 1],
                     step = rank == 0 ? 1 : strides_[rank - 1];
  with_type(dtype_, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    auto* to = static_cast<T*>(data_);
    const T x = convert<T>(value);
    walk_rows(shape_, strides_, strides_, [&](std::int64_t offset, std::int64_t) {
      for (std::int64_t i = 0; i < count; ++i) to[offset + i * step] = x;
    });
  });
}

}  // namespace qkv::inline v0
