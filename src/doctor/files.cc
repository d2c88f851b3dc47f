// Rules over the files of a model folder, and probes of the engine's own forward pass.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "qkv/doctor.h"
#include "qkv/tokenizer.h"

#include "base/check.h"
#include "base/excerpt.h"
#include "base/file.h"
#include "base/json.h"
#include "doctor/recorder.h"
#include "doctor/shape_rules.h"
#include "io/safetensors.h"
#include "models/encoder_classifier.h"

namespace qkv::inline v0::doctor {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfig = "config.json";
constexpr const char* kWeights = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kTokenizer = "tokenizer.json";

std::string reason_of(const Error& error) { return excerpt(error_reason(error), 300); }

std::optional<Json> read_json(const fs::path& path, const char* rule, Recorder& record) {
  try {
    return Json::parse(read_file(path), path.filename().string());
  } catch (const Error& error) {
    record.error(rule, path.filename().string(), {{"what", reason_of(error)}});
    return std::nullopt;
  }
}

// The files that hold the weights: one, or the shards of an index.
std::vector<fs::path> weight_files(const fs::path& folder, Recorder& record) {
  std::error_code ignored;
  if (fs::exists(folder / kWeights, ignored)) return {folder / kWeights};
  if (!fs::exists(folder / kIndex, ignored)) {
    record.error("file-missing", kWeights,
                 {{"what", std::string("neither ") + kWeights + " nor " + kIndex}});
    return {};
  }
  const std::optional<Json> index = read_json(folder / kIndex, "file-damaged", record);
  const Json* map = index ? index->find("weight_map") : nullptr;
  if (map == nullptr || !map->is_object()) {
    if (index) record.error("file-damaged", kIndex, {{"what", "no weight_map"}});
    return {};
  }
  std::set<std::string> names;
  for (const auto& [tensor, file] : map->as_object())
    if (file.is_string()) names.insert(file.as_string());
  std::vector<fs::path> files;
  for (const std::string& name : names) {
    if (fs::path(name).has_parent_path()) {
      record.error("file-damaged", kIndex, {{"what", "a shard outside the folder: " + name}});
    } else if (!fs::exists(folder / name, ignored)) {
      record.error("file-missing", name, {{"named by", kIndex}});
    } else {
      files.push_back(folder / name);
    }
  }
  return files;
}

struct ValueFigures {
  std::int64_t non_finite = 0, first_bad = -1;
  double least = 0, most = 0;
};

ValueFigures figures_of(const Tensor& tensor) {
  const Tensor x = tensor.to(DType::kFloat32).contiguous();
  const float* values = x.data<float>();
  ValueFigures f;
  bool any = false;
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    const double value = values[i];
    if (!std::isfinite(value)) {
      if (f.non_finite++ == 0) f.first_bad = i;
      continue;
    }
    f.least = any ? std::min(f.least, value) : value;
    f.most = any ? std::max(f.most, value) : value;
    any = true;
  }
  return f;
}

// Matrices that may rightly hold one value: types of a single-text model, and adapters before
// training.
bool may_be_constant(std::string_view name) {
  for (const char* part : {"token_type", "lora_B", "position_ids", "masked_bias", ".attn.bias"})
    if (name.find(part) != std::string_view::npos) return true;
  return false;
}

void check_values(const std::string& name, const Tensor& tensor, Recorder& record) {
  if (!is_floating(tensor.dtype()) || tensor.numel() == 0) return;
  const ValueFigures f = figures_of(tensor);
  if (f.non_finite > 0) {
    record.error("non-finite", name,
                 {{"non-finite values", f.non_finite},
                  {"first at element", f.first_bad},
                  {"of", tensor.numel()}});
    return;
  }
  if (tensor.rank() >= 2 && tensor.numel() >= 8 && f.least == f.most && !may_be_constant(name))
    record.error("weights-constant", name,
                 {{"every value", f.least}, {"shape", tensor.shape().str()}});
}

// Query weights [H D, C] whose heads are copies of one; or queries, keys and values in one matrix,
// queries of width C first.
void check_heads(const std::string& name, const Tensor& tensor, std::int64_t heads,
                 Recorder& record) {
  const auto contains = [&](const char* part) { return name.find(part) != std::string::npos; };
  const bool joined = contains("qkv.weight");
  if (!(joined || contains("q_proj.weight") || contains("query.weight")) || heads < 2 ||
      tensor.rank() != 2 || record.has("heads-alike") || tensor.numel() == 0)
    return;
  const std::int64_t rows = joined ? tensor.dim(1) : tensor.dim(0);
  if (rows % heads != 0 || rows > tensor.dim(0)) return;
  const Tensor x = tensor.contiguous();
  const std::size_t bytes =
      static_cast<std::size_t>(rows / heads * x.dim(1)) * dtype_size(x.dtype());
  const auto* first = static_cast<const char*>(x.raw());
  for (std::int64_t h = 1; h < heads; ++h)
    if (std::memcmp(first, first + static_cast<std::size_t>(h) * bytes, bytes) != 0) return;
  record.error("heads-alike", name, {{"heads with equal query weights", heads}});
}

// Names and shapes of all weights; values are judged on the way. heads: 0 if they are not known.
std::optional<NamedShapes> read_weights(const fs::path& folder, std::int64_t heads,
                                        Recorder& record) {
  const std::vector<fs::path> files = weight_files(folder, record);
  if (files.empty()) return std::nullopt;
  NamedShapes shapes;
  bool whole = true;
  for (const fs::path& path : files) {
    try {
      const io::SafetensorsFile file = io::SafetensorsFile::open(path);
      for (const std::string& name : file.names()) {
        const Tensor& tensor = file.tensor(name);
        shapes[name] = tensor.shape();
        check_values(name, tensor, record);
        check_heads(name, tensor, heads, record);
      }
    } catch (const Error& error) {
      record.error("file-damaged", path.filename().string(), {{"what", reason_of(error)}});
      whole = false;
    }
  }
  if (!whole) return std::nullopt;
  return shapes;
}

void check_tokenizer(const fs::path& folder, const ModelShape& shape, Recorder& record) {
  std::error_code ignored;
  if (!fs::exists(folder / kTokenizer, ignored)) {
    record.add("file-missing", Severity::kWarning, kTokenizer);
    return;
  }
  try {
    const Tokenizer tokenizer = Tokenizer::load(folder);
    if (shape.vocab > 0 && tokenizer.vocab_size() > shape.vocab)
      record.error("vocabulary", kTokenizer,
                   {{"pieces of the tokenizer", tokenizer.vocab_size()},
                    {"rows of the embedding", shape.vocab}});
  } catch (const Error& error) {
    const bool foreign = error.code() == ErrorCode::kUnsupported;
    if (foreign) return record.undecided("vocabulary", reason_of(error));
    record.error("file-damaged", kTokenizer, {{"what", reason_of(error)}});
  }
}

// The engine's model as a function of padded ids.
ModelUnderTest engine_model(const EncoderClassifier& model) {
  ModelUnderTest f;
  f.vocab_size = model.config().vocab_size;
  f.max_length = model.config().max_positions;
  if (const auto limit = model.config().position_limit()) f.max_length = *limit;
  f.time_limit = 60;
  f.forward = [&model](const ModelCall& call) {
    const std::int64_t batch = call.ids.dim(0), n = call.ids.dim(1);
    const std::int64_t* ids = call.ids.data<std::int64_t>();
    const std::int64_t* mask = call.attention_mask.data<std::int64_t>();
    std::vector<std::int64_t> lengths, places;
    std::vector<std::int32_t> real;
    for (std::int64_t b = 0; b < batch; ++b) {
      std::int64_t length = 0;
      for (std::int64_t i = b * n; i < (b + 1) * n; ++i) {
        if (mask[i] == 0) continue;
        ++length;
        places.push_back(i);
        real.push_back(static_cast<std::int32_t>(ids[i]));
      }
      lengths.push_back(length);
    }
    const RaggedLayout layout = RaggedLayout::from_lengths(lengths);
    Context context;
    context.layout = &layout;
    const Tensor hidden = model.encode(context, real).value();
    const std::int64_t width = hidden.dim(1);
    Tensor out = Tensor::zeros({batch, n, width});
    for (std::size_t t = 0; t < places.size(); ++t)
      std::memcpy(out.data<float>() + places[t] * width,
                  hidden.data<float>() + static_cast<std::int64_t>(t) * width,
                  static_cast<std::size_t>(width) * sizeof(float));
    return out;
  };
  return f;
}

const char* rule_of(std::string_view message) {
  if (message.find("expected a tensor") != std::string_view::npos) return "weights-missing";
  if (message.find("expected shape") != std::string_view::npos) return "weights-shape";
  return "config";
}

void probe_engine(const fs::path& folder, const Json& config, Recorder& record) {
  const Json* type = config.find("model_type");
  const std::string name = type != nullptr && type->is_string() ? type->as_string() : "";
  constexpr const char* kProbes[] = {"batch-mates", "padding-leak", "order-blind",
                                     "position-shift"};
  const bool classifier = config.contains("id2label") && (name == "bert" || name == "qkv");
  if (!classifier || record.any_error()) {
    for (const char* id : kProbes)
      record.skip(id, classifier
                          ? "the files have errors"
                          : fmt::format("the engine does not run models of type '{}'", name));
    return;
  }
  try {
    const EncoderClassifier model = EncoderClassifier::load(folder);
    if (model.config().vocab_size < 4 || engine_model(model).max_length < 4) {
      for (const char* id : kProbes) record.undecided(id, "vocabulary or positions below 4");
      return;
    }
    record.merge(check_model(engine_model(model)));
  } catch (const Error& error) {
    record.error(rule_of(error.what()), folder.filename().string(), {{"what", reason_of(error)}});
  }
}

Report check_folder(const fs::path& folder) {
  Recorder record;
  std::error_code ignored;
  std::optional<Json> config;
  if (!fs::exists(folder / kConfig, ignored)) {
    record.error("file-missing", kConfig);
  } else {
    config = read_json(folder / kConfig, "config", record);
    if (config && !config->is_object()) {
      record.error("config", kConfig, {{"what", "not an object"}});
      config.reset();
    }
  }
  Recorder unheard;  // the shapes are judged below
  const std::int64_t heads = config ? read_model_shape(*config, unheard).heads : 0;
  const std::optional<NamedShapes> shapes = read_weights(folder, heads, record);
  if (!config) {
    for (const char* id : {"weights-shape", "weights-missing", "vocabulary", "positions-table"})
      record.undecided(id, "config.json cannot be read");
    return record.take();
  }
  const ModelShape shape = read_model_shape(*config, record);
  if (shapes) check_shapes(shape, *shapes, record);
  check_tokenizer(folder, shape, record);
  if (shapes) probe_engine(folder, *config, record);
  return record.take();
}

}  // namespace

Report check_path(const fs::path& path) {
  std::error_code ignored;
  require<ArgumentError>(fs::exists(path, ignored), "doctor",
                         "expected a model folder or a .safetensors file, found nothing at {}",
                         path.string());
  if (fs::is_directory(path, ignored)) return check_folder(path);
  require<ArgumentError>(path.extension() == ".safetensors", "doctor",
                         "expected a model folder or a .safetensors file, got {}", path.string());
  Recorder record;
  try {
    const io::SafetensorsFile file = io::SafetensorsFile::open(path);
    for (const std::string& name : file.names()) check_values(name, file.tensor(name), record);
  } catch (const Error& error) {
    record.error("file-damaged", path.filename().string(), {{"what", reason_of(error)}});
  }
  return record.take();
}

}  // namespace qkv::inline v0::doctor
