#include "io/gguf.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/excerpt.h"
#include "io/byte_reader.h"
#include "io/mapped_tensor.h"

namespace qkv::inline v0::io {
namespace {

constexpr std::uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr std::uint64_t kShortArray = 256, kMaxName = 65535;
constexpr int kMaxDims = 4, kMaxDepth = 4;

enum ValueType : std::uint32_t {
  kUInt8,
  kInt8,
  kUInt16,
  kInt16,
  kUInt32,
  kInt32,
  kFloat32,
  kBool,
  kString,
  kArray,
  kUInt64,
  kInt64,
  kFloat64
};

// Bytes of a value; of strings and arrays the least.
std::uint64_t least_bytes(std::uint32_t type) {
  constexpr std::uint64_t kBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};
  require<DataError>(type <= kFloat64, "gguf", "expected a type of values from 0 to 12, got {}",
                     type);
  return kBytes[type];
}

Json unsigned_json(std::uint64_t value) {
  if (value > static_cast<std::uint64_t>(INT64_MAX)) return Json(static_cast<double>(value));
  return Json(static_cast<std::int64_t>(value));
}

Json take_scalar(ByteReader& reader, std::uint32_t type) {
  switch (type) {
    case kUInt8:
      return Json(std::int64_t{reader.take<std::uint8_t>("a number")});
    case kInt8:
      return Json(std::int64_t{reader.take<std::int8_t>("a number")});
    case kUInt16:
      return Json(std::int64_t{reader.take<std::uint16_t>("a number")});
    case kInt16:
      return Json(std::int64_t{reader.take<std::int16_t>("a number")});
    case kUInt32:
      return Json(std::int64_t{reader.take<std::uint32_t>("a number")});
    case kInt32:
      return Json(std::int64_t{reader.take<std::int32_t>("a number")});
    case kFloat32:
      return Json(reader.take<float>("a number"));
    case kBool: {
      const auto byte = reader.take<std::uint8_t>("a truth value");
      require<DataError>(byte <= 1, "gguf", "expected a truth value of 0 or 1, got {}", byte);
      return Json(byte == 1);
    }
    case kString:
      return Json(reader.take_string("a string"));
    case kUInt64:
      return unsigned_json(reader.take<std::uint64_t>("a number"));
    case kInt64:
      return Json(reader.take<std::int64_t>("a number"));
    default:
      return Json(reader.take<double>("a number"));
  }
}

// How tensors are stored: plain numbers, blocks that are read, and blocks that are only known.
struct TensorType {
  std::uint32_t id;
  const char* name;
  int elements, bytes;  // of one block
};
constexpr TensorType kUnreadTypes[] = {
    {9, "Q8_1", 32, 36},      {10, "Q2_K", 256, 84},    {11, "Q3_K", 256, 110},
    {15, "Q8_K", 256, 292},   {16, "IQ2_XXS", 256, 66}, {17, "IQ2_XS", 256, 74},
    {18, "IQ3_XXS", 256, 98}, {19, "IQ1_S", 256, 50},   {20, "IQ4_NL", 32, 18},
    {21, "IQ3_S", 256, 110},  {22, "IQ2_S", 256, 82},   {23, "IQ4_XS", 256, 136},
    {29, "IQ1_M", 256, 56},   {34, "TQ1_0", 256, 54},   {35, "TQ2_0", 256, 66},
    {39, "MXFP4", 32, 17},
};
constexpr std::pair<std::uint32_t, DType> kDenseTypes[] = {
    {0, DType::kFloat32}, {1, DType::kFloat16}, {24, DType::kInt8},    {25, DType::kInt16},
    {26, DType::kInt32},  {27, DType::kInt64},  {28, DType::kFloat64}, {30, DType::kBFloat16},
};
constexpr std::pair<std::uint32_t, BlockType> kBlockTypeIds[] = {
    {2, BlockType::kQ40}, {3, BlockType::kQ41},  {6, BlockType::kQ50},  {7, BlockType::kQ51},
    {8, BlockType::kQ80}, {12, BlockType::kQ4K}, {13, BlockType::kQ5K}, {14, BlockType::kQ6K},
};

template <class T, std::size_t kSize>
const T* find_type(const std::pair<std::uint32_t, T> (&types)[kSize], std::uint32_t id) {
  for (const auto& [known, type] : types)
    if (known == id) return &type;
  return nullptr;
}

TensorType tensor_type(std::uint32_t id) {
  if (const DType* dtype = find_type(kDenseTypes, id))
    return {id, dtype_name(*dtype), 1, static_cast<int>(dtype_size(*dtype))};
  if (const BlockType* type = find_type(kBlockTypeIds, id)) {
    const BlockLayout layout = block_layout(*type);
    return {id, layout.name, layout.elements, layout.bytes};
  }
  for (const TensorType& type : kUnreadTypes)
    if (type.id == id) return type;
  fail<DataError>("gguf", "expected a type of tensors that is known, got number {}", id);
}

// A tensor of the header.
struct Info {
  std::string name;
  TensorType type{};
  Shape shape;
  std::uint64_t begin = 0, bytes = 0;  // in the data part
};

// Bytes that shape and type ask for; every product is checked.
std::uint64_t bytes_of(const Info& info) {
  const auto row = static_cast<std::uint64_t>(info.shape[info.shape.rank() - 1]);
  const auto elements = static_cast<std::uint64_t>(info.type.elements);
  require<DataError>(row % elements == 0, "gguf", "expected rows of whole blocks of {}, got {} {}",
                     elements, info.type.name, info.shape.str());
  std::uint64_t bytes = 0;
  bool wraps =
      __builtin_mul_overflow(row / elements, static_cast<std::uint64_t>(info.type.bytes), &bytes);
  std::uint64_t numel = row;
  for (int i = 0; i + 1 < info.shape.rank(); ++i) {
    const auto extent = static_cast<std::uint64_t>(info.shape[i]);
    wraps = __builtin_mul_overflow(bytes, extent, &bytes) || wraps;
    wraps = __builtin_mul_overflow(numel, extent, &numel) || wraps;
  }
  require<DataError>(!wraps && bytes <= static_cast<std::uint64_t>(INT64_MAX) &&
                         numel <= static_cast<std::uint64_t>(INT64_MAX),
                     "gguf", "expected a shape that fits in memory, got {}", info.shape.str());
  return bytes;
}

}  // namespace

// Fills a GgufFile from its map.
class GgufParser {
 public:
  explicit GgufParser(GgufFile& file)
      : file_(file), reader_(file.file_->data(), file.file_->size(), "gguf") {}

  void parse() {
    require<DataError>(reader_.take<std::uint32_t>("the magic number") == kMagic, "gguf",
                       "expected the letters GGUF at the begin, got something else");
    const auto version = reader_.take<std::uint32_t>("the version");
    require<DataError>((version & 0xFFFF) != 0, "gguf",
                       "expected a little-endian file, got a big-endian one");
    require<DataError>(version == 2 || version == 3, "gguf", "expected version 2 or 3, got {}",
                       version);
    file_.version_ = static_cast<int>(version);
    const auto tensors = reader_.take<std::uint64_t>("the number of tensors");
    const auto values = reader_.take<std::uint64_t>("the number of keys");
    for (std::uint64_t i = 0; i < values; ++i) parse_value();
    std::vector<Info> infos;
    for (std::uint64_t i = 0; i < tensors; ++i) infos.push_back(parse_info());
    place(infos);
    for (const Info& info : infos) file_.tensors_.push_back(make_tensor(info));
  }

 private:
  void parse_value() {
    const std::string key(reader_.take_string("a key"));
    require<DataError>(
        !key.empty() && key.size() <= kMaxName && find_invalid_utf8(key) == std::string::npos,
        "gguf", "expected a key of 1 to {} bytes in UTF-8, got {} bytes", kMaxName, key.size());
    require<DataError>(keys_.insert(key).second, "gguf", "expected each key once, got '{}' twice",
                       excerpt(key));
    const auto type = reader_.take<std::uint32_t>("a type of values");
    least_bytes(type);
    try {
      if (type != kArray) {
        values().emplace_back(key, take_scalar(reader_, type));
        return;
      }
      GgufFile::Array array;
      Json value = take_array(array, 1);
      if (array.count <= kShortArray) values().emplace_back(key, std::move(value));
      file_.arrays_.emplace(key, array);
    } catch (const DataError& error) {
      fail<DataError>("gguf", "key '{}': {}", excerpt(key), error_reason(error));
    }
  }

  Json::Object& values() { return file_.metadata_.as_object(); }

  // The elements of a short array; null for a long one, whose place is noted.
  Json take_array(GgufFile::Array& array, int depth) {
    require<DataError>(depth <= kMaxDepth, "gguf", "expected arrays at most {} deep, got more",
                       kMaxDepth);
    array.type = reader_.take<std::uint32_t>("a type of elements");
    array.count = reader_.take<std::uint64_t>("the number of elements");
    array.position = reader_.position();
    const std::uint64_t least = least_bytes(array.type);
    require<DataError>(array.count <= reader_.left() / least, "gguf",
                       "expected as many elements as fit into the file, got {}", array.count);
    const bool fixed = array.type != kString && array.type != kArray;
    if (fixed && array.count > kShortArray) {
      reader_.skip(array.count * least, "elements");
      return {};
    }
    const bool kept = array.count <= kShortArray;
    Json elements = Json::array();
    for (std::uint64_t i = 0; i < array.count; ++i) {
      GgufFile::Array inner;
      Json element = array.type == kArray ? take_array(inner, depth + 1)
                     : kept               ? take_scalar(reader_, array.type)
                                          : (reader_.take_string("a string"), Json());
      if (kept) elements.push_back(std::move(element));
    }
    return elements;
  }

  Info parse_info() {
    Info info;
    info.name = reader_.take_string("the name of a tensor");
    require<DataError>(!info.name.empty() && info.name.size() <= kMaxName &&
                           find_invalid_utf8(info.name) == std::string::npos,
                       "gguf", "expected a tensor's name of 1 to {} bytes in UTF-8, got {} bytes",
                       kMaxName, info.name.size());
    require<DataError>(names_.insert(info.name).second, "gguf",
                       "expected each tensor once, got '{}' twice", excerpt(info.name));
    try {
      const auto rank = reader_.take<std::uint32_t>("the number of dimensions");
      require<DataError>(rank >= 1 && rank <= kMaxDims, "gguf",
                         "expected 1 to {} dimensions, got {}", kMaxDims, rank);
      std::vector<std::int64_t> dims;
      for (std::uint32_t i = 0; i < rank; ++i) {
        dims.push_back(reader_.take<std::int64_t>("an extent"));
        require<DataError>(dims.back() >= 1, "gguf", "expected extents >= 1, got {}", dims.back());
      }
      std::reverse(dims.begin(), dims.end());
      info.shape = Shape(dims);
      info.type = tensor_type(reader_.take<std::uint32_t>("a type of tensors"));
      info.begin = reader_.take<std::uint64_t>("an offset");
      info.bytes = bytes_of(info);
    } catch (const DataError& error) {
      fail<DataError>("gguf", "tensor '{}': {}", excerpt(info.name), error_reason(error));
    }
    return info;
  }

  // Where the data part begins, and that the tensors lie in it beside each other.
  void place(const std::vector<Info>& infos) {
    std::int64_t alignment = 32;
    if (const Json* given = file_.metadata_.find("general.alignment")) alignment = given->as_int();
    constexpr std::int64_t kMaxAlignment = 1 << 20;
    require<DataError>(alignment >= 8 && alignment <= kMaxAlignment && alignment % 8 == 0, "gguf",
                       "expected general.alignment as a multiple of 8 up to {}, got {}",
                       kMaxAlignment, alignment);
    const auto step = static_cast<std::uint64_t>(alignment);
    data_start_ = (reader_.position() + step - 1) / step * step;
    const std::uint64_t size = file_.file_->size();
    const std::uint64_t data = size > data_start_ ? size - data_start_ : 0;
    std::vector<const Info*> order;
    for (const Info& info : infos) {
      require<DataError>(info.begin % step == 0, "gguf",
                         "expected tensor '{}' at a multiple of {}, got {}", excerpt(info.name),
                         step, info.begin);
      require<DataError>(info.begin <= data && info.bytes <= data - info.begin, "gguf",
                         "expected tensor '{}' within {} bytes of data, got {} bytes at {}: the "
                         "file is cut off",
                         excerpt(info.name), data, info.bytes, info.begin);
      order.push_back(&info);
    }
    std::sort(order.begin(), order.end(),
              [](const Info* a, const Info* b) { return a->begin < b->begin; });
    for (std::size_t i = 1; i < order.size(); ++i)
      require<DataError>(order[i]->begin >= order[i - 1]->begin + order[i - 1]->bytes, "gguf",
                         "expected tensors beside each other, got '{}' within '{}'",
                         excerpt(order[i]->name), excerpt(order[i - 1]->name));
  }

  GgufTensor make_tensor(const Info& info) const {
    GgufTensor tensor;
    tensor.name = info.name;
    tensor.shape = info.shape;
    const std::uint64_t begin = data_start_ + info.begin;
    if (const DType* dtype = find_type(kDenseTypes, info.type.id)) {
      tensor.dense = mapped_tensor(file_.file_, begin, info.shape, *dtype);
    } else if (const BlockType* type = find_type(kBlockTypeIds, info.type.id)) {
      const std::int64_t row =
          info.shape[info.shape.rank() - 1] / info.type.elements * info.type.bytes;
      tensor.blocks = {
          *type, info.shape,
          mapped_tensor(file_.file_, begin, {static_cast<std::int64_t>(info.bytes) / row, row},
                        DType::kUInt8)};
    } else {
      tensor.unreadable = info.type.name;
    }
    return tensor;
  }

  GgufFile& file_;
  ByteReader reader_;
  std::uint64_t data_start_ = 0;
  std::set<std::string> keys_, names_;
};

GgufFile GgufFile::open(const std::filesystem::path& path) {
  GgufFile file;
  file.file_ = MappedFile::open(path);
  try {
    GgufParser(file).parse();
  } catch (const DataError& error) {
    fail<ModelError>("gguf", "'{}': {}", path.string(), error_reason(error));
  }
  return file;
}

std::vector<std::string> GgufFile::strings(const std::string& key) const {
  std::vector<std::string> result;
  const auto found = arrays_.find(key);
  if (found == arrays_.end()) return result;
  require<ModelError>(found->second.type == kString, "gguf",
                      "expected an array of strings in '{}', got type {}", key, found->second.type);
  ByteReader reader(file_->data(), file_->size(), "gguf");
  reader.skip(found->second.position, "what lies before");
  result.reserve(found->second.count);  // each was read when the file was opened
  for (std::uint64_t i = 0; i < found->second.count; ++i)
    result.emplace_back(reader.take_string("a string"));
  return result;
}

std::vector<float> GgufFile::floats(const std::string& key) const {
  std::vector<float> result;
  const auto found = arrays_.find(key);
  if (found == arrays_.end()) return result;
  require<ModelError>(found->second.type == kFloat32, "gguf",
                      "expected an array of float32 in '{}', got type {}", key, found->second.type);
  result.resize(found->second.count);
  if (!result.empty())
    std::memcpy(result.data(), file_->data() + found->second.position,
                result.size() * sizeof(float));
  return result;
}

std::vector<std::int32_t> GgufFile::integers(const std::string& key) const {
  std::vector<std::int32_t> result;
  const auto found = arrays_.find(key);
  if (found == arrays_.end()) return result;
  const std::uint32_t type = found->second.type;
  require<ModelError>(type == kInt32 || type == kUInt32, "gguf",
                      "expected an array of int32 in '{}', got type {}", key, type);
  result.resize(found->second.count);
  if (!result.empty())
    std::memcpy(result.data(), file_->data() + found->second.position,
                result.size() * sizeof(std::int32_t));
  return result;
}

}  // namespace qkv::inline v0::io
