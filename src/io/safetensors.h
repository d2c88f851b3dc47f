// The safetensors format: u64 header length, JSON header, bytes.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "qkv/tensor.h"

namespace qkv::inline v0::io {

// Tensors are read-only views of the memory map where the data is aligned for its type, copies
// otherwise. ModelError for anything that does not add up (see tests/io): every number of the
// header is checked against the file's size before it is used.
//
// The file must not be shortened while tensors of it are in use: reading a page that is gone ends
// the process (SIGBUS), as with every memory map. save_safetensors never does that: it puts a new
// file under the name, and the old one lives on behind its tensors.
//
// U16, U32, U64 and the 8-bit floating types have no element type here: they are copied to I32,
// I64, I64 and BF16, which hold all their values (U64: ModelError above 2^63 - 1). The types below
// a byte and C64 are listed with their shape, and refused when asked for.
class SafetensorsFile {
 public:
  struct Unreadable {
    std::string dtype;
    Shape shape;
  };
  static SafetensorsFile open(const std::filesystem::path& path);
  const std::vector<std::string>& names() const { return names_; }  // in file order
  bool contains(const std::string& name) const {
    return tensors_.count(name) + unreadable_.count(name) > 0;
  }
  // ModelError naming the nearest if absent, UnsupportedError if unreadable.
  const Tensor& tensor(const std::string& name) const;
  const std::map<std::string, Unreadable>& unreadable() const { return unreadable_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  std::vector<std::string> names_;
  std::map<std::string, Tensor> tensors_;
  std::map<std::string, Unreadable> unreadable_;
  std::map<std::string, std::string> metadata_;
};

// Contiguous tensors in the given order, header padded to a multiple of 8, written atomically.
// Equal input gives equal bytes.
void save_safetensors(const std::filesystem::path& path,
                      const std::vector<std::pair<std::string, Tensor>>& tensors,
                      const std::map<std::string, std::string>& metadata = {});

// The same for tensors that are made one after the other while the file is written, so that they
// are never in memory together: make(i) gives the tensor of specs[i], once, in an order of its own.
struct TensorSpec {
  std::string name;
  DType dtype = DType::kFloat32;
  Shape shape;
};
void save_safetensors(const std::filesystem::path& path, const std::vector<TensorSpec>& specs,
                      const std::function<Tensor(std::size_t)>& make,
                      const std::map<std::string, std::string>& metadata = {});

}  // namespace qkv::inline v0::io
