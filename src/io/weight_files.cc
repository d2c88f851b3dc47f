#include "io/weight_files.h"

#include <cstring>

#include "base/available_memory.h"
#include "base/check.h"
#include "base/file.h"
#include "base/nearest.h"
#include "base/path.h"
#include "io/weight_impl.h"

namespace qkv::inline v0::io {
namespace {

// Rows of a matrix, or elements of a vector, as units of equal size.
struct Rows {
  std::int64_t count = 0;
  std::size_t bytes = 0;
};

// Rotary pairs (2 i, 2 i + 1) of each head to (i, i + D / 2): a new order of whole rows.
Tensor half_split(const Tensor& stored, const Rows& rows, std::int64_t heads) {
  Tensor copy = Tensor::empty(stored.shape(), stored.dtype());
  const auto* from = static_cast<const std::byte*>(stored.raw());
  auto* to = static_cast<std::byte*>(copy.raw());
  const std::int64_t size = rows.count / heads, half = size / 2;
  for (std::int64_t row = 0; row < rows.count; ++row) {
    const std::int64_t first = row / size * size, i = row - first;
    const std::int64_t source = first + (i < half ? 2 * i : 2 * (i - half) + 1);
    std::memcpy(to + static_cast<std::size_t>(row) * rows.bytes,
                from + static_cast<std::size_t>(source) * rows.bytes, rows.bytes);
  }
  return copy;
}

Tensor minus_one(const Tensor& stored) {
  Tensor wide = stored.to(DType::kFloat32).clone();
  for (std::int64_t i = 0; i < wide.numel(); ++i) wide.data<float>()[i] -= 1;
  return wide.to(stored.dtype());
}

Tensor changed(const WeightEntry& entry) {
  const Tensor& stored = entry.dense;
  switch (entry.change) {
    case WeightChange::kHalfSplit:
      return half_split(
          stored,
          {stored.dim(0),
           stored.nbytes() / static_cast<std::size_t>(std::max<std::int64_t>(stored.dim(0), 1))},
          entry.heads);
    case WeightChange::kMinusOne:
      return minus_one(stored);
    case WeightChange::kTranspose:
      return stored.transpose(0, 1).contiguous();
    default:
      return stored;
  }
}

void require_readable(const std::string& name, const WeightEntry& entry) {
  require<UnsupportedError>(entry.unreadable.empty(), "weights",
                            "expected tensor '{}' in a type that can be computed with, got {} in "
                            "'{}'; convert it to BF16",
                            name, entry.unreadable, entry.file);
}

}  // namespace

void WeightFiles::Impl::add(const std::string& name, WeightEntry entry) {
  const auto found = entries.find(name);
  if (found != entries.end())
    fail<ModelError>("weights", "expected the tensor '{}' once, got it in '{}' and in '{}'", name,
                     found->second.file, entry.file);
  bytes += entry.dense.defined()          ? entry.dense.nbytes()
           : entry.blocks.bytes.defined() ? entry.blocks.bytes.nbytes()
                                          : 0;
  names.push_back(name);
  entries.emplace(name, std::move(entry));
}

const WeightEntry& WeightFiles::Impl::entry(const std::string& name) const {
  const auto found = entries.find(name);
  if (found != entries.end()) return found->second;
  const std::string near = nearest_name(name, names);
  fail<ModelError>("weights", "expected the tensor '{}', got {} tensors without it in '{}'{}", name,
                   names.size(), path.string(),
                   near.empty() ? "" : "; the nearest name is '" + near + "'");
}

WeightFiles WeightFiles::open(const std::filesystem::path& path) {
  require<IoError>(path_exists(path) || std::filesystem::is_symlink(path), "weights",
                   "expected a model's folder or file, got '{}', which is not there",
                   path.string());
  auto impl = std::make_shared<Impl>();
  impl->path = resolve_cache_folder(path);
  const std::string extension = impl->path.extension().string();
  if (is_folder(impl->path) || extension == ".safetensors") {
    read_safetensors_weights(impl->path, *impl);
  } else if (extension == ".gguf") {
    read_gguf_weights(impl->path, *impl);
  } else if (extension == ".bin" && !is_pickle(impl->path)) {
    read_llama2c_weights(impl->path, *impl);
  } else {
    refuse_foreign_weights(impl->path);
  }
  require_memory(impl->bytes, "the weights of '" + impl->path.string() + "'");
  return WeightFiles(std::move(impl));
}

WeightFormat WeightFiles::format() const { return impl_->format; }
const std::filesystem::path& WeightFiles::path() const { return impl_->path; }
std::uint64_t WeightFiles::bytes() const { return impl_->bytes; }
const std::vector<std::string>& WeightFiles::names() const { return impl_->names; }
bool WeightFiles::contains(const std::string& name) const { return impl_->entries.count(name) > 0; }
const std::string& WeightFiles::file_of(const std::string& name) const {
  return impl_->entry(name).file;
}
const Shape& WeightFiles::shape(const std::string& name) const { return impl_->entry(name).shape; }
bool WeightFiles::is_quantized(const std::string& name) const {
  return impl_->entry(name).blocks.bytes.defined();
}

DType WeightFiles::dtype(const std::string& name) const {
  const WeightEntry& entry = impl_->entry(name);
  require_readable(name, entry);
  return entry.dense.defined() ? entry.dense.dtype() : DType::kFloat32;
}

Tensor WeightFiles::tensor(const std::string& name) const {
  const WeightEntry& entry = impl_->entry(name);
  require_readable(name, entry);
  require<ModelError>(entry.dense.defined(), "weights",
                      "expected tensor '{}' as plain numbers, got {} blocks in '{}'", name,
                      block_layout(entry.blocks.type).name, entry.file);
  return changed(entry);
}

BlockTensor WeightFiles::quantized(const std::string& name) const {
  const WeightEntry& entry = impl_->entry(name);
  require<ModelError>(entry.blocks.bytes.defined(), "weights",
                      "expected tensor '{}' in quantised blocks, got plain numbers in '{}'", name,
                      entry.file);
  if (entry.change != WeightChange::kHalfSplit) return entry.blocks;
  BlockTensor copy = entry.blocks;
  const Tensor& stored = entry.blocks.bytes;
  copy.bytes =
      half_split(stored, {stored.dim(0), static_cast<std::size_t>(stored.dim(1))}, entry.heads);
  return copy;
}

const Json& WeightFiles::config() const { return impl_->config; }
const Json& WeightFiles::metadata() const { return impl_->metadata; }

std::optional<text::EmbeddedVocabulary> WeightFiles::vocabulary() const {
  if (!impl_->gguf) return std::nullopt;
  return gguf_vocabulary(*impl_->gguf);
}

}  // namespace qkv::inline v0::io
