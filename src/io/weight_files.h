// The weights of a model, whichever files hold them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "qkv/tensor.h"

#include "base/json.h"
#include "tensor/block_tensor.h"
#include "text/embedded_vocabulary.h"

namespace qkv::inline v0::io {

enum class WeightFormat { kSafetensors, kGguf, kLlama2c };

// Weights of
// - a Hugging Face folder: model.safetensors, or model.safetensors.index.json and its shards (links
//   into a cache are followed), beside config.json;
// - one .safetensors file;
// - a .gguf file (version 2 or 3), or a .bin file of llama2.c. Both appear as a Hugging Face folder
//   would: names, shapes and config() are translated, and the rows of query and key are put back
//   into the order of half-split rotary pairs, so that a loader knows one layout only.
//
// Files are mapped into memory, not read: opening costs the header. ModelError for anything that
// does not add up, before memory is asked for: damaged files, missing, surplus or twofold shards, a
// PyTorch pickle (the message holds the command that converts it), weights larger than the memory
// that is free. IoError where the file system says no.
//
// Copying shares everything. Const access from several threads is safe. The files must not be
// shortened while tensors of them are in use (see SafetensorsFile).
//
// A folder of the Hugging Face cache (models--NAME with refs and snapshots) stands for its snapshot
// `main`; path() is where it lies.
class WeightFiles {
 public:
  static WeightFiles open(const std::filesystem::path& path);

  WeightFormat format() const;
  const std::filesystem::path& path() const;
  std::uint64_t bytes() const;  // of all tensors as stored

  const std::vector<std::string>& names() const;  // in file order
  bool contains(const std::string& name) const;
  // The file that holds the tensor, for messages: "model-00001-of-00002.safetensors".
  const std::string& file_of(const std::string& name) const;

  // These throw ModelError, naming the nearest names, if there is no such tensor.
  const Shape& shape(const std::string& name) const;
  bool is_quantized(const std::string& name) const;
  // Of tensor(name); float32 if it is quantised. UnsupportedError as there.
  DType dtype(const std::string& name) const;
  // In its stored type: a read-only view of the map, or a copy where the data is not aligned or its
  // order or type is not ours (unsigned and 8-bit floating types are widened exactly). ModelError
  // if it is quantised; UnsupportedError for types without an equal here (F4, F6, C64).
  Tensor tensor(const std::string& name) const;
  // ModelError if it is not quantised.
  BlockTensor quantized(const std::string& name) const;

  // config.json as an object; for GGUF and llama2.c what would stand there. Empty without one.
  const Json& config() const;
  // safetensors: __metadata__ of the first file. GGUF: every key with its value, but for arrays of
  // more than 256 elements, which are left out (the vocabulary is in gguf.h).
  const Json& metadata() const;
  // The tokenizer's vocabulary where the file holds one (GGUF); make_tokenizer takes it.
  std::optional<text::EmbeddedVocabulary> vocabulary() const;

  struct Impl;  // weight_impl.h
  explicit WeightFiles(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

 private:
  std::shared_ptr<const Impl> impl_;
};

}  // namespace qkv::inline v0::io
