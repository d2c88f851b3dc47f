// A strided view of shared storage. Knows shapes and bytes, no gradients and no arithmetic.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>

#include "qkv/dtype.h"
#include "qkv/error.h"

namespace qkv::inline v0 {

// Up to kMaxRank extents, each >= 0. A value type.
class QKV_API Shape {
 public:
  static constexpr int kMaxRank = 6;
  Shape() = default;
  Shape(std::initializer_list<std::int64_t> dims);
  explicit Shape(std::span<const std::int64_t> dims);
  int rank() const { return rank_; }
  std::int64_t operator[](int i) const { return dims_[static_cast<std::size_t>(i)]; }
  std::int64_t& operator[](int i) { return dims_[static_cast<std::size_t>(i)]; }
  std::int64_t numel() const;  // product of the extents; 1 for rank 0
  bool operator==(const Shape& other) const;
  std::string str() const;  // "[2, 3]"

 private:
  std::array<std::int64_t, kMaxRank> dims_{};
  int rank_ = 0;
};

class Storage;  // src/tensor/storage.h

// Copying a Tensor shares its storage. Const access from several threads is safe; writing is the
// caller's to order. Storage is aligned to 64 bytes and has at least 64 spare bytes behind the last
// element.
class QKV_API Tensor {
 public:
  Tensor() = default;  // undefined: defined() is false
  static Tensor empty(const Shape& shape,
                      DType dtype = DType::kFloat32);  // contents unspecified (NaN in debug builds)
  static Tensor zeros(const Shape& shape, DType dtype = DType::kFloat32);
  // View of memory of the caller's; `owner` (may be null) is kept alive as long as the view.
  static Tensor wrap(void* data, const Shape& shape, DType dtype,
                     std::shared_ptr<const void> owner = nullptr);
  // The same for any strides, in elements; 0 and negative ones too. Every element must be the
  // caller's memory.
  static Tensor wrap_strided(void* data, const Shape& shape, const Shape& strides, DType dtype,
                             std::shared_ptr<const void> owner = nullptr);
  template <class T>
  static Tensor from(std::span<const T> values, const Shape& shape);  // copies; numel must fit
  template <class T>
  static Tensor from(std::initializer_list<T> values, const Shape& shape) {
    return from<T>(std::span<const T>(values.begin(), values.size()), shape);
  }

  bool defined() const { return storage_ != nullptr; }
  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  const Shape& strides() const { return strides_; }  // in elements
  int rank() const { return shape_.rank(); }
  std::int64_t dim(int i) const { return shape_[i < 0 ? i + shape_.rank() : i]; }
  std::int64_t stride(int i) const { return strides_[i < 0 ? i + strides_.rank() : i]; }
  std::int64_t numel() const { return shape_.numel(); }
  std::size_t nbytes() const { return static_cast<std::size_t>(numel()) * dtype_size(dtype_); }
  bool is_contiguous() const;

  void* raw() const { return data_; }
  // Pointer to element 0; ShapeError if T is not the dtype.
  template <class T>
  T* data() const {
    if (dtype_of<T>() != dtype_) wrong_dtype(dtype_of<T>());
    return static_cast<T*>(data_);
  }

  // Views (share storage). reshape needs a contiguous tensor; one extent may be -1.
  Tensor reshape(const Shape& shape) const;
  Tensor narrow(int dim, std::int64_t start, std::int64_t length) const;
  Tensor transpose(int a, int b) const;
  Tensor select(int dim, std::int64_t index) const;  // drops the dimension

  Tensor clone() const;          // contiguous copy
  Tensor contiguous() const;     // itself if it is, else a copy
  Tensor to(DType dtype) const;  // converted copy (round to nearest even); itself if equal
  void copy_from(const Tensor& source) const;  // same shape; converts the dtype
  void fill(double value) const;
  bool shares_storage(const Tensor& other) const { return storage_ == other.storage_; }

 private:
  [[noreturn]] void wrong_dtype(DType asked) const;
  std::shared_ptr<Storage> storage_;
  void* data_ = nullptr;
  Shape shape_, strides_;
  DType dtype_ = DType::kFloat32;
};

}  // namespace qkv::inline v0
