// What a WeightFiles holds, for those who fill it: one function per kind of files.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "io/gguf.h"
#include "io/weight_files.h"

namespace qkv::inline v0::io {

// What has to be done to a stored tensor before it is as a Hugging Face folder has it.
enum class WeightChange {
  kNone,
  kHalfSplit,  // rows of each head from interleaved rotary pairs to half-split ones
  kMinusOne,   // a norm's weight that is stored with 1 added
  kTranspose   // [out, in] to [in, out]
};

struct WeightEntry {
  Shape shape;         // as given out
  Tensor dense;        // as stored; undefined if quantised or unreadable
  BlockTensor blocks;  // bytes undefined if dense
  std::string file;
  std::string unreadable;  // dtype without an equal here; empty for others
  WeightChange change = WeightChange::kNone;
  std::int64_t heads = 0;  // kHalfSplit: of this tensor
};

struct WeightFiles::Impl {
  WeightFormat format = WeightFormat::kSafetensors;
  std::filesystem::path path;
  std::uint64_t bytes = 0;
  std::vector<std::string> names;
  std::map<std::string, WeightEntry> entries;
  Json config = Json::object(), metadata = Json::object();
  std::optional<GgufFile> gguf;

  // ModelError if the name is there already.
  void add(const std::string& name, WeightEntry entry);
  const WeightEntry& entry(const std::string& name) const;
};

// A folder, or one .safetensors file.
void read_safetensors_weights(const std::filesystem::path& path, WeightFiles::Impl& weights);

void read_gguf_weights(const std::filesystem::path& path, WeightFiles::Impl& weights);
// Nothing if the file has no "tokenizer.ggml.tokens".
std::optional<text::EmbeddedVocabulary> gguf_vocabulary(const GgufFile& file);
void read_llama2c_weights(const std::filesystem::path& path, WeightFiles::Impl& weights);

// The folder of the snapshot `main` if `path` is a model's folder in the Hugging Face cache; else
// `path`.
std::filesystem::path resolve_cache_folder(const std::filesystem::path& path);

// Whether a file begins as PyTorch's pickles do.
bool is_pickle(const std::filesystem::path& path);

// Refuses a file or folder of another program with the way to convert it. `path` exists.
[[noreturn]] void refuse_foreign_weights(const std::filesystem::path& path);

}  // namespace qkv::inline v0::io
