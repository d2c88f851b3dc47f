#include "models/convert.h"

#include <cmath>
#include <map>
#include <set>
#include <string>
#include <system_error>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include "qkv/tokenizer.h"

#include "base/check.h"
#include "base/file.h"
#include "base/json.h"
#include "base/path.h"
#include "io/safetensors.h"
#include "io/weight_files.h"
#include "ops/quantized.h"
#include "text/embedded_vocabulary.h"

namespace qkv::inline v0 {
namespace fs = std::filesystem;
namespace {

constexpr const char* kWhere = "convert";

// The folder in the making: beside `out`, removed unless it was put into its place.
class FolderInTheMaking {
 public:
  explicit FolderInTheMaking(const fs::path& out) : out_(out) {
    require<ArgumentError>(!path_exists(out) || (is_folder(out) && fs::is_empty(out)), kWhere,
                           "expected a new or empty folder to write to, got '{}', which holds "
                           "something",
                           out.string());
    const fs::path parent = out.parent_path().empty() ? fs::path(".") : out.parent_path();
    std::error_code code;
    fs::create_directories(parent, code);
    path_ = parent / fmt::format(".qkv-convert-{}", ::getpid());
    fs::remove_all(path_, code);
    require<IoError>(fs::create_directory(path_, code), kWhere,
                     "expected to make a folder beside '{}', got: {}", out.string(),
                     code.message());
  }
  ~FolderInTheMaking() {
    std::error_code code;
    if (!done_) fs::remove_all(path_, code);
  }
  FolderInTheMaking(const FolderInTheMaking&) = delete;
  FolderInTheMaking& operator=(const FolderInTheMaking&) = delete;
  const fs::path& path() const { return path_; }

  void finish() {
    sync_folder(path_);
    replace_path(path_, out_);
    done_ = true;
  }

 private:
  fs::path out_, path_;
  bool done_ = false;
};

// "a/", "a/." and "a" are one folder.
fs::path plain_path(const fs::path& path) {
  const fs::path normal = fs::absolute(path).lexically_normal();
  return normal.filename().empty() ? normal.parent_path() : normal;
}

DType target_dtype(const io::WeightFiles& files, const std::string& name,
                   const std::optional<DType>& wanted) {
  const DType stored = files.dtype(name);
  return wanted && is_floating(stored) ? *wanted : stored;
}

// fp16 ends at 65504: what lies beyond would become an infinity without a word.
void check_range(const Tensor& from, const Tensor& to, const std::string& name) {
  if (to.dtype() != DType::kFloat16 || from.dtype() == DType::kFloat16) return;
  const Tensor before = from.to(DType::kFloat32).contiguous(), after = to.to(DType::kFloat32);
  for (std::int64_t i = 0; i < before.numel(); ++i)
    require<ModelError>(!std::isinf(after.data<float>()[i]) || std::isinf(before.data<float>()[i]),
                        kWhere,
                        "expected values that float16 can hold, got {} in '{}'; use bfloat16",
                        before.data<float>()[i], name);
}

Tensor converted(const io::WeightFiles& files, const std::string& name, DType dtype) {
  const Tensor from =
      files.is_quantized(name) ? ops::dequantize(files.quantized(name)) : files.tensor(name);
  Tensor to = from.to(dtype);
  check_range(from, to, name);
  return to;
}

ConvertResult write_weights(const io::WeightFiles& files, const fs::path& folder,
                            const ConvertOptions& options) {
  ConvertResult result;
  std::vector<io::TensorSpec> specs;
  for (const std::string& name : files.names()) {
    specs.push_back({name, target_dtype(files, name, options.dtype), files.shape(name)});
    result.bytes +=
        static_cast<std::uint64_t>(specs.back().shape.numel()) * dtype_size(specs.back().dtype);
  }
  result.tensors = static_cast<std::int64_t>(specs.size());
  std::int64_t done = 0;
  const auto make = [&](std::size_t i) {
    if (options.progress) options.progress(done, result.tensors);
    ++done;
    return converted(files, specs[i].name, specs[i].dtype);
  };
  io::save_safetensors(folder / "model.safetensors", specs, make, {{"format", "pt"}});
  return result;
}

// The dtype that most of the weights have.
DType main_dtype(const io::WeightFiles& files, const std::optional<DType>& wanted) {
  std::map<DType, std::int64_t> elements;
  for (const std::string& name : files.names())
    if (is_floating(files.dtype(name)))
      elements[target_dtype(files, name, wanted)] += files.shape(name).numel();
  DType most = DType::kFloat32;
  for (const auto& [dtype, count] : elements)
    if (count > elements[most]) most = dtype;
  return most;
}

void write_config(const io::WeightFiles& files, const fs::path& folder,
                  const ConvertOptions& options) {
  Json config = files.config();
  require<ModelError>(config.size() > 0, kWhere,
                      "expected config.json beside the weights of '{}', got none",
                      files.path().string());
  config["torch_dtype"] = dtype_name(main_dtype(files, options.dtype));
  write_file_atomic(folder / "config.json", config.dump(2) + "\n");
}

// Files of a folder that are not weights: the tokenizer, pooling, generation, notes.
void copy_other_files(const fs::path& from, const fs::path& to) {
  static const std::set<std::string> kWeights = {".safetensors", ".bin", ".pt",   ".pth", ".h5",
                                                 ".msgpack",     ".ot",  ".onnx", ".gguf"};
  for (const fs::directory_entry& entry : fs::directory_iterator(from)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with('.') || name == "config.json" || name == "model.safetensors.index.json" ||
        kWeights.count(entry.path().extension().string()) > 0)
      continue;
    if (entry.is_regular_file()) {
      write_file_atomic(to / name, read_file(entry.path()));
    } else if (is_folder(entry.path()) && path_exists(entry.path() / "config.json")) {
      fs::create_directory(to / name);  // "1_Pooling" of sentence-transformers
      write_file_atomic(to / name / "config.json", read_file(entry.path() / "config.json"));
    }
  }
}

void write_gguf_tokenizer(const io::WeightFiles& files, const fs::path& folder) {
  const auto vocabulary = files.vocabulary();
  require<ModelError>(vocabulary.has_value(), kWhere,
                      "expected a tokenizer in '{}' (tokenizer.ggml.tokens), got none",
                      files.path().string());
  text::make_tokenizer(*vocabulary).save(folder);
  const Json* chat = files.metadata().find("tokenizer.chat_template");
  if (chat == nullptr) return;
  const fs::path path = folder / "tokenizer_config.json";
  Json config = path_exists(path) ? Json::parse(read_file(path), path.string()) : Json::object();
  config["chat_template"] = *chat;
  write_file_atomic(path, config.dump(2) + "\n");
}

void write_llama2c_tokenizer(const io::WeightFiles& files, const fs::path& folder, fs::path path) {
  const std::int64_t size = files.config().at("vocab_size").as_int();
  const fs::path beside = files.path().parent_path();
  for (const std::string& name : {std::string("tokenizer.bin"), fmt::format("tok{}.bin", size)})
    if (path.empty() && path_exists(beside / name)) path = beside / name;
  require<ModelError>(!path.empty(), kWhere,
                      "expected tokenizer.bin or tok{}.bin beside '{}', got none; name the file "
                      "with --tokenizer",
                      size, files.path().string());
  text::make_tokenizer(text::read_llama2c_vocabulary(path, size)).save(folder);
}

}  // namespace

ConvertResult convert_model(const fs::path& in, const fs::path& out,
                            const ConvertOptions& options) {
  const io::WeightFiles files = io::WeightFiles::open(in);
  FolderInTheMaking folder(plain_path(out));
  write_config(files, folder.path(), options);
  switch (files.format()) {
    case io::WeightFormat::kGguf:
      write_gguf_tokenizer(files, folder.path());
      break;
    case io::WeightFormat::kLlama2c:
      write_llama2c_tokenizer(files, folder.path(), options.tokenizer);
      break;
    case io::WeightFormat::kSafetensors:
      if (is_folder(files.path())) copy_other_files(files.path(), folder.path());
      break;
  }
  const ConvertResult result = write_weights(files, folder.path(), options);
  folder.finish();
  return result;
}

}  // namespace qkv::inline v0
