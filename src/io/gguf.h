// GGUF files as they are: keys, values and tensors under their own names. WeightFiles translates.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "qkv/tensor.h"

#include "base/file.h"
#include "base/json.h"
#include "tensor/block_tensor.h"

namespace qkv::inline v0::io {

struct GgufTensor {
  std::string name;
  Shape shape;         // slowest extent first, as everywhere here; GGUF writes the fastest first
  Tensor dense;        // undefined if quantised or unreadable
  BlockTensor blocks;  // bytes undefined if dense or unreadable
  std::string unreadable;  // type that is not read: "Q2_K", "IQ4_NL"; empty for others
};

// Versions 2 and 3, little-endian. ModelError for anything that does not add up: every length is
// held against what is left of the file before it is used, nothing is allocated by a length alone.
// Tensors are read-only views of the map where the data is aligned, copies otherwise. Const access
// from several threads is safe.
// Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
class GgufFile {
 public:
  static GgufFile open(const std::filesystem::path& path);

  int version() const { return version_; }
  const std::vector<GgufTensor>& tensors() const { return tensors_; }  // in file order
  // Every key with its value, without arrays of more than 256 elements.
  const Json& metadata() const { return metadata_; }
  // Arrays of any length. Empty without such a key; ModelError if it holds something else.
  std::vector<std::string> strings(const std::string& key) const;
  std::vector<float> floats(const std::string& key) const;
  std::vector<std::int32_t> integers(const std::string& key) const;

 private:
  struct Array {
    std::uint32_t type = 0;
    std::uint64_t count = 0, position = 0;  // of the first element in the file
  };
  friend class GgufParser;
  std::shared_ptr<const MappedFile> file_;
  int version_ = 0;
  std::vector<GgufTensor> tensors_;
  Json metadata_ = Json::object();
  std::map<std::string, Array> arrays_;
};

}  // namespace qkv::inline v0::io
