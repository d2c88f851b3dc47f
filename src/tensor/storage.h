// Bytes behind tensors: owned (from the caching allocator) or somebody else's.
#pragma once

#include <cstddef>
#include <memory>

#include "base/memory.h"

namespace qkv::inline v0 {

class Storage {
 public:
  explicit Storage(std::size_t bytes)
      : kind_(current_memory_kind()),
        bytes_(bytes),
        data_(allocate_bytes(bytes, kind_)),
        owned_(true) {}
  Storage(void* data, std::size_t bytes, std::shared_ptr<const void> owner)
      : kind_(MemoryKind::kOther),
        bytes_(bytes),
        data_(data),
        owned_(false),
        owner_(std::move(owner)) {}
  ~Storage() {
    if (owned_) free_bytes(data_, bytes_, kind_);
  }
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;
  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  MemoryKind kind_;
  std::size_t bytes_;
  void* data_;
  bool owned_;
  std::shared_ptr<const void> owner_;
};

}  // namespace qkv::inline v0
