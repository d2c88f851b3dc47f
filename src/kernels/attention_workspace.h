// Accounted scratch memory that several threads see.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/memory.h"

namespace qkv::inline v0::kernels {

// Contents are unspecified. Neither copied nor moved.
template <class T>
class Workspace {
 public:
  explicit Workspace(std::int64_t count)
      : bytes_(static_cast<std::size_t>(count) * sizeof(T)),
        data_(static_cast<T*>(allocate_bytes(bytes_, MemoryKind::kWorkspace))) {}
  ~Workspace() { free_bytes(data_, bytes_, MemoryKind::kWorkspace); }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  T* data() const { return data_; }

 private:
  std::size_t bytes_;
  T* data_;
};

}  // namespace qkv::inline v0::kernels
