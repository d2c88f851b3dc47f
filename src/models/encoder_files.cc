// Folders of EncoderClassifier: config.json and model.safetensors.
#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include <fmt/core.h>

#include "base/check.h"
#include "base/file.h"
#include "io/safetensors.h"
#include "models/checkpoint.h"
#include "models/encoder_impl.h"
#include "models/json_reader.h"
#include "ops/optimizer.h"

namespace qkv::inline v0 {
namespace {

// A tensor of the file and the part of a parameter that holds it.
struct Stored {
  std::string name;
  Var parameter;
  Shape shape;
  std::int64_t start = 0;  // first row in the parameter
  Tensor value() const { return parameter.value().narrow(0, start, shape[0]); }
};
Stored whole(std::string name, const Var& parameter) {
  return {std::move(name), parameter, parameter.value().shape(), 0};
}

// BERT's names for ours, whole paths without the last part; {} stands for the layer's number.
struct Rename {
  std::string_view own, bert;
};
constexpr std::array kOutside{
    Rename{"embeddings.token", "bert.embeddings.word_embeddings"},
    Rename{"embeddings.position", "bert.embeddings.position_embeddings"},
    Rename{"embeddings.norm", "bert.embeddings.LayerNorm"},
    Rename{"pooler", "bert.pooler.dense"},
    Rename{"classifier", "classifier"},
};
constexpr std::array kInLayer{
    Rename{"attention.out", "attention.output.dense"},
    Rename{"attention_norm", "attention.output.LayerNorm"},
    Rename{"feed_forward.up", "intermediate.dense"},
    Rename{"feed_forward.down", "output.dense"},
    Rename{"feed_forward_norm", "output.LayerNorm"},
};
constexpr const char* kTokenTypes = "bert.embeddings.token_type_embeddings.weight";
constexpr const char* kPositionIds =
    "bert.embeddings.position_ids";  // a buffer of older files, always 0, 1, 2, ...

template <std::size_t N>
std::string_view renamed(const std::array<Rename, N>& names, std::string_view own) {
  const auto it =
      std::find_if(names.begin(), names.end(), [&](const Rename& r) { return r.own == own; });
  require<InternalError>(it != names.end(), "model", "expected a parameter that BERT knows, got {}",
                         own);
  return it->bert;
}

// The tensors of one parameter under BERT's names: the fused projection is three of them.
void append_bert(const nn::Parameter& parameter, std::vector<Stored>& stored) {
  const std::string_view full = parameter.name;
  const std::size_t dot = full.rfind('.');
  const std::string_view path = full.substr(0, dot), kind = full.substr(dot + 1);
  constexpr std::string_view kLayers = "encoder.layers.";
  if (!path.starts_with(kLayers)) {
    stored.push_back(whole(fmt::format("{}.{}", renamed(kOutside, path), kind), parameter.var));
    return;
  }
  const std::size_t end = path.find('.', kLayers.size());
  const std::string layer =
      fmt::format("bert.encoder.layer.{}", path.substr(kLayers.size(), end - kLayers.size()));
  const std::string_view inner = path.substr(end + 1);
  if (inner != "attention.qkv") {
    stored.push_back(
        whole(fmt::format("{}.{}.{}", layer, renamed(kInLayer, inner), kind), parameter.var));
    return;
  }
  Shape shape = parameter.var.value().shape();
  shape[0] /= 3;
  std::int64_t start = 0;
  for (const char* part : {"query", "key", "value"}) {
    stored.push_back(
        {fmt::format("{}.attention.self.{}.{}", layer, part, kind), parameter.var, shape, start});
    start += shape[0];
  }
}

std::vector<Stored> stored_tensors(const EncoderConfig& config, const nn::Module& module) {
  std::vector<Stored> stored;
  const bool bert = config.is_bert();
  module.for_each([&](const nn::Parameter& p) {
    if (bert) {
      append_bert(p, stored);
    } else {
      stored.push_back(whole(p.name, p.var));
    }
  });
  return stored;
}

// A checked weight of the file.
const Tensor& weight(const io::SafetensorsFile& file, const std::string& name, const Shape& shape) {
  require<ModelError>(file.contains(name), "model.safetensors", "expected a tensor {} {}, got none",
                      name, shape.str());
  const Tensor& tensor = file.tensor(name);
  require<ModelError>(is_floating(tensor.dtype()), "model.safetensors",
                      "{}: expected floating-point numbers, got {}", name,
                      dtype_name(tensor.dtype()));
  require<ModelError>(tensor.shape() == shape, "model.safetensors",
                      "{}: expected shape {} (config.json), got {}", name, shape.str(),
                      tensor.shape().str());
  return tensor;
}

void check_finite(const std::string& name, const Tensor& tensor) {
  const std::int64_t bad = ops::find_non_finite(tensor);
  require<ModelError>(bad < 0, "model.safetensors",
                      "{}: expected finite numbers, got NaN or infinity at element {}", name, bad);
}

// Files from elsewhere give every token of a single text the type 0: its row is a constant that
// every position gets.
void add_token_type(const io::SafetensorsFile& file, const Tensor& positions) {
  const std::int64_t width = positions.dim(1);
  require<ModelError>(file.contains(kTokenTypes), "model.safetensors",
                      "expected a tensor {}, got none", kTokenTypes);
  const Tensor& types = file.tensor(kTokenTypes);
  require<ModelError>(
      types.rank() == 2 && types.dim(0) >= 1 && types.dim(1) == width && is_floating(types.dtype()),
      "model.safetensors", "{}: expected floating-point rows of {}, got {} {}", kTokenTypes, width,
      dtype_name(types.dtype()), types.shape().str());
  const Tensor row = types.select(0, 0).to(DType::kFloat32).contiguous();
  check_finite(kTokenTypes, row);
  const float* add = row.data<float>();
  float* table = positions.data<float>();
  for (std::int64_t p = 0; p < positions.dim(0); ++p) {
    for (std::int64_t c = 0; c < width; ++c) table[p * width + c] += add[c];
  }
}

void check_no_surplus(const io::SafetensorsFile& file, const std::vector<Stored>& stored,
                      bool bert) {
  std::vector<std::string> known;
  for (const Stored& s : stored) known.push_back(s.name);
  if (bert) known.insert(known.end(), {kTokenTypes, kPositionIds});
  std::sort(known.begin(), known.end());
  for (const std::string& name : file.names()) {
    require<ModelError>(std::binary_search(known.begin(), known.end(), name), "model.safetensors",
                        "expected only tensors of the model that config.json describes, got {}",
                        name);
  }
}

}  // namespace

void EncoderClassifier::save(const std::filesystem::path& folder) const {
  if (!impl_->published.is_null())
    return save_checkpoint(impl_->published, impl_->transformer, folder);
  const EncoderConfig& c = impl_->config;
  std::vector<std::pair<std::string, Tensor>> tensors;
  for (const Stored& s : stored_tensors(c, module())) tensors.emplace_back(s.name, s.value());
  if (c.is_bert())
    tensors.emplace_back(kTokenTypes, Tensor::zeros({1, c.d_model}, module().dtype()));
  std::error_code code;
  std::filesystem::create_directories(folder, code);
  require<IoError>(!code, "save", "expected a folder that can be made, got {} for {}",
                   code.message(), folder.string());
  io::save_safetensors(folder / "model.safetensors", tensors, {{"format", "pt"}});
  write_file_atomic(folder / "config.json", c.to_json().dump(2) + "\n");
}

EncoderClassifier EncoderClassifier::load(const std::filesystem::path& folder) {
  if (is_published(folder)) return load_published(folder, {});
  const EncoderConfig config = EncoderConfig::from_json(read_json_file(folder / "config.json"));
  const io::SafetensorsFile file = io::SafetensorsFile::open(folder / "model.safetensors");
  // What config.json claims is held against the file before memory is asked for.
  require<ModelError>(config.num_layers <= static_cast<std::int64_t>(file.names().size()),
                      "model.safetensors",
                      "expected the weights of {} layers (config.json), got {} tensors",
                      config.num_layers, file.names().size());
  auto impl =
      std::unique_ptr<Impl>(new Impl{config, Transformer::shell(transformer_config(config))});
  nn::Module& module = impl->transformer.module();
  const bool bert = config.is_bert();
  const std::vector<Stored> stored = stored_tensors(config, module);
  for (const Stored& s : stored) weight(file, s.name, s.shape);
  impl->transformer.allocate();
  for (const Stored& s : stored) {
    const Tensor value = s.value();
    value.copy_from(weight(file, s.name, s.shape));
    check_finite(s.name, value);
  }
  if (bert) add_token_type(file, module.find("embeddings.position.weight")->var.value());
  check_no_surplus(file, stored, bert);
  module.bump_version();
  return EncoderClassifier(std::move(impl));
}

}  // namespace qkv::inline v0
