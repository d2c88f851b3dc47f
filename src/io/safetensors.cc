#include "io/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <set>

#include "base/check.h"
#include "base/excerpt.h"
#include "base/file.h"
#include "base/json.h"
#include "base/nearest.h"
#include "io/mapped_tensor.h"
#include "io/stored_types.h"

namespace qkv::inline v0::io {
namespace {

static_assert(std::endian::native == std::endian::little,
              "safetensors data is little-endian and read in place");

constexpr std::uint64_t kPrefix = 8;               // bytes of the header's length
constexpr std::uint64_t kMaxHeader = 100'000'000;  // as in the reference implementation
constexpr const char* kMetadata = "__metadata__";

const StoredType& parse_type(const std::string& name) {
  const StoredType* type = find_stored_type(name);
  if (type == nullptr)
    fail<DataError>("safetensors",
                    "expected a dtype of F64 F32 BF16 F16 I64 I32 I16 I8 U64 U32 U16 U8 BOOL or a "
                    "smaller floating type, got '{}'",
                    excerpt(name));
  return *type;
}

// One tensor of the header: checked in itself, not yet against its neighbours.
struct Entry {
  std::string name;
  const StoredType* type = nullptr;
  Shape shape;
  std::uint64_t begin = 0, end = 0;  // in the data part
};

std::uint64_t parse_offset(const Json& value) {
  const std::int64_t offset = value.as_int();
  require<DataError>(offset >= 0, "safetensors", "expected data_offsets >= 0, got {}", offset);
  return static_cast<std::uint64_t>(offset);
}

Shape parse_shape(const Json& value) {
  const Json::Array& dims = value.as_array();
  require<DataError>(dims.size() <= Shape::kMaxRank, "safetensors",
                     "expected at most {} dimensions, got {}", int{Shape::kMaxRank}, dims.size());
  std::vector<std::int64_t> extents;
  for (const Json& dim : dims) {
    extents.push_back(dim.as_int());
    require<DataError>(extents.back() >= 0, "safetensors", "expected extents >= 0, got {}",
                       extents.back());
  }
  return Shape(extents);
}

// The bytes that type and shape ask for; every product is checked.
std::uint64_t bytes_of(const StoredType& type, const Shape& shape) {
  std::uint64_t bits = static_cast<std::uint64_t>(type.bits);
  for (int i = 0; i < shape.rank(); ++i) {
    const bool wraps = __builtin_mul_overflow(bits, static_cast<std::uint64_t>(shape[i]), &bits);
    require<DataError>(!wraps && bits <= static_cast<std::uint64_t>(INT64_MAX), "safetensors",
                       "expected a shape that fits in memory, got {}", shape.str());
  }
  require<DataError>(bits % 8 == 0, "safetensors", "expected whole bytes, got {} bits of {} {}",
                     bits, type.name, shape.str());
  return bits / 8;
}

Entry parse_entry(const std::string& name, const Json& value) {
  Entry entry;
  entry.name = name;
  entry.type = &parse_type(value.at("dtype").as_string());
  entry.shape = parse_shape(value.at("shape"));
  const Json& offsets = value.at("data_offsets");
  require<DataError>(offsets.as_array().size() == 2, "safetensors",
                     "expected two data_offsets, got {}", offsets.size());
  entry.begin = parse_offset(offsets.at(std::size_t{0}));
  entry.end = parse_offset(offsets.at(1));
  require<DataError>(entry.begin <= entry.end, "safetensors",
                     "expected data_offsets in order, got [{}, {}]", entry.begin, entry.end);
  const std::uint64_t wanted = bytes_of(*entry.type, entry.shape);
  require<DataError>(entry.end - entry.begin == wanted, "safetensors",
                     "expected {} bytes for {} {}, got {}", wanted, entry.type->name,
                     entry.shape.str(), entry.end - entry.begin);
  return entry;
}

// The tensors must cover the data part exactly: no hole, no overlap, nothing behind.
void check_coverage(const std::vector<Entry>& entries, std::uint64_t data_bytes) {
  std::vector<const Entry*> order;
  for (const Entry& entry : entries) order.push_back(&entry);
  std::sort(order.begin(), order.end(), [](const Entry* a, const Entry* b) {
    return std::pair(a->begin, a->end) < std::pair(b->begin, b->end);
  });
  std::uint64_t covered = 0;
  for (const Entry* entry : order) {
    require<DataError>(entry->begin == covered, "safetensors",
                       "expected tensor '{}' to begin at byte {} of the data, got {}", entry->name,
                       covered, entry->begin);
    covered = entry->end;
  }
  require<DataError>(covered == data_bytes, "safetensors",
                     "expected {} bytes of data, got {}: the file is {}", covered, data_bytes,
                     covered > data_bytes ? "cut off" : "longer than its header says");
}

Tensor make_tensor(const std::shared_ptr<const MappedFile>& file, std::uint64_t data_start,
                   const Entry& entry) {
  const std::uint64_t begin = data_start + entry.begin;
  if (entry.type->reading == Reading::kWiden)
    return widen_stored(*entry.type, file->data() + begin, entry.shape);
  return mapped_tensor(file, begin, entry.shape, entry.type->dtype);
}

void check_bool_bytes(const MappedFile& file, std::uint64_t data_start, const Entry& entry) {
  if (entry.type->dtype != DType::kBool) return;
  for (std::uint64_t i = entry.begin; i < entry.end; ++i) {
    const int byte = std::to_integer<int>(file.data()[data_start + i]);
    require<DataError>(byte <= 1, "safetensors",
                       "expected bytes 0 and 1 in BOOL tensor '{}', got {}", entry.name, byte);
  }
}

struct Header {
  std::uint64_t data_start = 0;
  std::vector<Entry> entries;
  std::map<std::string, std::string> metadata;
};

Header parse_header(const MappedFile& file) {
  Header header;
  require<DataError>(file.size() >= kPrefix, "safetensors", "expected at least {} bytes, got {}",
                     kPrefix, file.size());
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), kPrefix);
  require<DataError>(length <= file.size() - kPrefix && length <= kMaxHeader, "safetensors",
                     "expected a header of at most {} bytes, got a header length of {}",
                     std::min<std::uint64_t>(file.size() - kPrefix, kMaxHeader), length);
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + kPrefix, length);
  require<DataError>(text.starts_with('{'), "safetensors",
                     "expected a header that begins with '{{', got {} bytes without it", length);
  header.data_start = kPrefix + length;
  const Json json = Json::parse(text, "safetensors", 8);
  for (const auto& [name, value] : json.as_object()) {
    if (name == kMetadata) {
      for (const auto& [key, word] : value.as_object()) header.metadata[key] = word.as_string();
      continue;
    }
    try {
      header.entries.push_back(parse_entry(name, value));
    } catch (const Error& error) {
      fail<DataError>("safetensors", "tensor '{}': {}", name, error_reason(error));
    }
  }
  check_coverage(header.entries, file.size() - header.data_start);
  for (const Entry& entry : header.entries) check_bool_bytes(file, header.data_start, entry);
  return header;
}

// Where each tensor's bytes go: wide types first, so that every tensor is aligned for its type.
std::vector<std::size_t> data_order(const std::vector<TensorSpec>& specs) {
  std::vector<std::size_t> order(specs.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return dtype_size(specs[a].dtype) > dtype_size(specs[b].dtype);
  });
  return order;
}

std::uint64_t bytes_of(const TensorSpec& spec) {
  return static_cast<std::uint64_t>(spec.shape.numel()) * dtype_size(spec.dtype);
}

std::string format_header(const std::vector<TensorSpec>& specs,
                          const std::vector<std::size_t>& order,
                          const std::map<std::string, std::string>& metadata) {
  std::vector<std::uint64_t> begins(specs.size());
  std::uint64_t offset = 0;
  for (const std::size_t i : order) {
    begins[i] = offset;
    offset += bytes_of(specs[i]);
  }
  Json::Object header;
  if (!metadata.empty()) {
    Json::Object words;
    for (const auto& [key, word] : metadata) words.emplace_back(key, word);
    header.emplace_back(kMetadata, std::move(words));
  }
  for (std::size_t i = 0; i < specs.size(); ++i) {
    Json::Array shape;
    for (int d = 0; d < specs[i].shape.rank(); ++d) shape.emplace_back(specs[i].shape[d]);
    Json entry = Json::object();
    entry["dtype"] = stored_name(specs[i].dtype);
    entry["shape"] = std::move(shape);
    entry["data_offsets"] = Json::Array{begins[i], begins[i] + bytes_of(specs[i])};
    header.emplace_back(specs[i].name, std::move(entry));
  }
  std::string text = Json(std::move(header)).dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  return text;
}

void check_savable(const std::vector<TensorSpec>& specs,
                   const std::map<std::string, std::string>& metadata) {
  const auto check_text = [](const std::string& text) {
    require<ArgumentError>(find_invalid_utf8(text) == std::string::npos, "safetensors",
                           "expected names in UTF-8, got '{}'", Json(text).as_string());
  };
  std::set<std::string_view> seen;
  for (const TensorSpec& spec : specs) {
    check_text(spec.name);
    require<ArgumentError>(spec.name != kMetadata, "safetensors",
                           "expected another tensor name than '{}', got it", kMetadata);
    require<ArgumentError>(seen.insert(spec.name).second, "safetensors",
                           "expected each tensor name once, got '{}' twice", spec.name);
  }
  for (const auto& [key, word] : metadata) {
    check_text(key);
    check_text(word);
  }
}

}  // namespace

SafetensorsFile SafetensorsFile::open(const std::filesystem::path& path) {
  const std::shared_ptr<const MappedFile> mapped = MappedFile::open(path);
  SafetensorsFile file;
  try {
    Header header = parse_header(*mapped);
    for (const Entry& entry : header.entries) {
      file.names_.push_back(entry.name);
      if (entry.type->reading == Reading::kUnreadable) {
        file.unreadable_[entry.name] = {entry.type->name, entry.shape};
      } else {
        file.tensors_.emplace(entry.name, make_tensor(mapped, header.data_start, entry));
      }
    }
    file.metadata_ = std::move(header.metadata);
  } catch (const DataError& error) {
    fail<ModelError>("safetensors", "'{}': {}", path.string(), error_reason(error));
  }
  return file;
}

const Tensor& SafetensorsFile::tensor(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found != tensors_.end()) return found->second;
  const auto foreign = unreadable_.find(name);
  if (foreign != unreadable_.end())
    fail<UnsupportedError>("safetensors",
                           "expected tensor '{}' in a type that can be computed with, got {}; "
                           "convert it to BF16",
                           name, foreign->second.dtype);
  const std::string near = nearest_name(name, names_);
  fail<ModelError>("safetensors", "expected the tensor '{}', got a file of {} tensors without it{}",
                   name, names_.size(), near.empty() ? "" : "; the nearest name is '" + near + "'");
}

void save_safetensors(const std::filesystem::path& path, const std::vector<TensorSpec>& specs,
                      const std::function<Tensor(std::size_t)>& make,
                      const std::map<std::string, std::string>& metadata) {
  check_savable(specs, metadata);
  const std::vector<std::size_t> order = data_order(specs);
  const std::string header = format_header(specs, order, metadata);
  const std::uint64_t length = header.size();
  AtomicFile file(path);
  file.write(&length, kPrefix);
  file.write(header.data(), header.size());
  for (const std::size_t i : order) {
    const Tensor packed = make(i).contiguous();
    require<ArgumentError>(packed.shape() == specs[i].shape && packed.dtype() == specs[i].dtype,
                           "safetensors", "expected '{}' as {} {}, got {} {}", specs[i].name,
                           dtype_name(specs[i].dtype), specs[i].shape.str(),
                           dtype_name(packed.dtype()), packed.shape().str());
    file.write(packed.raw(), packed.nbytes());
  }
  file.commit();
}

void save_safetensors(const std::filesystem::path& path,
                      const std::vector<std::pair<std::string, Tensor>>& tensors,
                      const std::map<std::string, std::string>& metadata) {
  std::vector<TensorSpec> specs;
  for (const auto& [name, tensor] : tensors) {
    require<ArgumentError>(tensor.defined(), "safetensors",
                           "expected a tensor with data, got '{}' without", name);
    specs.push_back({name, tensor.dtype(), tensor.shape()});
  }
  save_safetensors(
      path, specs, [&](std::size_t i) { return tensors[i].second; }, metadata);
}

}  // namespace qkv::inline v0::io
