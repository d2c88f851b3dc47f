#include "models/checkpoint.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <fmt/core.h>

#include "base/check.h"
#include "base/file.h"
#include "base/log.h"
#include "io/safetensors.h"
#include "models/families/weight_names.h"
#include "ops/optimizer.h"
#include "ops/quantized.h"

namespace qkv::inline v0 {
namespace {

const char* const kWhere = "weights";

std::string listed(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 8;
  std::string all;
  for (std::size_t i = 0; i < std::min(names.size(), kShown); ++i)
    all += fmt::format("{}{}", i > 0 ? ", " : "", names[i]);
  if (names.size() > kShown) all += fmt::format(" and {} more", names.size() - kShown);
  return all;
}

// A part of a parameter and the tensor that it is read from; an empty name: the file has none.
struct Source {
  StoredPart part;
  std::string name;
};

class Loader {
 public:
  Loader(const io::WeightFiles& files, const LoadOptions& options)
      : files_(files),
        options_(options),
        reader_(files.config()),
        family_(family_of(reader_)),
        head_(options.head ? *options.head : head_of(family_, reader_)) {}

  Checkpoint load() {
    prefix_ =
        find_prefix(family_.weights, [&](const std::string& n) { return files_.contains(n); });
    Transformer model = Transformer::shell(configuration());
    find_sources(model);
    check_names();
    if (options_.keep_stored) lend_stored(model);
    if (options_.read_only) lend(model);
    model.allocate();
    std::vector<std::string> fresh = fill(model);
    model.module().bump_version();
    return {new_config(), std::move(model), std::move(fresh)};
  }

 private:
  TransformerConfig configuration() {
    Json json = new_config();
    TransformerConfig config = read_config(family_, JsonReader(json), head_);
    if (options_.adjust) options_.adjust(config);
    // What config.json claims is held against the file before memory is asked for.
    require<ModelError>(config.num_layers <= static_cast<std::int64_t>(files_.names().size()),
                        kWhere, "expected the weights of {} layers (config.json), got {} tensors",
                        config.num_layers, files_.names().size());
    // A bare trunk may have been saved without its pooler.
    if (head_ == HeadKind::kNone && config.head.dense && !has_pooler()) config.head.dense = false;
    return config;
  }

  bool has_pooler() const {
    return std::any_of(
        family_.weights.rules.begin(), family_.weights.rules.end(), [&](const WeightRule& rule) {
          return rule.own == "pooler" && rule.file.front() == '^' &&
                 files_.contains(prefix_.trunk + std::string(rule.file.substr(1)) + ".weight");
        });
  }

  // config.json as it is, or as another head makes it.
  Json new_config() const {
    Json json = files_.config();
    if (!options_.head) return json;
    for (const Architecture& architecture : family_.architectures) {
      if (architecture.head != head_) continue;
      json["architectures"] = Json(Json::Array{Json(std::string(architecture.name))});
      break;
    }
    if (options_.pooling) {
      json["model_type"] = "qkv";
      json[kBaseModelType] = std::string(family_.model_type);
      json[kClassifierPooling] = ops::pooling_name(*options_.pooling);
    }
    if (options_.labels.empty()) return json;
    Json id2label = Json::object(), label2id = Json::object();
    for (std::size_t i = 0; i < options_.labels.size(); ++i) {
      id2label[std::to_string(i)] = options_.labels[i];
      label2id[options_.labels[i]] = static_cast<std::int64_t>(i);
    }
    json["id2label"] = std::move(id2label);
    json["label2id"] = std::move(label2id);
    return json;
  }

  void find_sources(const Transformer& model) {
    std::vector<StoredPart> parts =
        stored_parts(family_.weights, model.config(), model.module(), prefix_);
    const bool tied = model.config().head.tied;
    for (StoredPart& part : parts) {
      // A tied matrix may be stored under either name.
      if (tied && part.parameter->name == "embeddings.token.weight") {
        tied_names_ = tied_head_names();
        part.names.insert(part.names.end(), tied_names_.begin(), tied_names_.end());
      }
      Source source{std::move(part), ""};
      for (const std::string& name : source.part.names) {
        if (!files_.contains(name)) continue;
        used_.insert(name);
        const bool fresh =
            options_.fresh_classifier && source.part.parameter->name.starts_with("classifier.");
        if (source.name.empty() && !fresh) source.name = name;
      }
      sources_.push_back(std::move(source));
    }
  }

  std::vector<std::string> tied_head_names() const {
    std::vector<std::string> names;
    for (const WeightRule& rule : family_.weights.rules) {
      if (rule.own == "head.out")
        names.push_back(prefix_.outer + std::string(rule.file) + ".weight");
      if (rule.own == "head.out.weight") names.push_back(prefix_.outer + std::string(rule.file));
    }
    return names;
  }

  bool may_be_fresh(const Source& source) const {
    const std::string& name = source.part.parameter->name;
    return options_.head && (name.starts_with("pooler") || name.starts_with("classifier") ||
                             name.starts_with("head."));
  }

  // All names and shapes, before memory is asked for.
  void check_names() const {
    std::vector<std::string> missing, surplus;
    for (const Source& source : sources_) {
      if (source.name.empty()) {
        if (!may_be_fresh(source))
          missing.push_back(
              fmt::format("{} {}", source.part.names.front(), source.part.shape().str()));
        continue;
      }
      const Shape shape = files_.shape(source.name);
      if (shape == source.part.shape()) continue;
      require<ModelError>(may_be_fresh(source), kWhere,
                          "{}: expected shape {} (config.json), got {}", source.name,
                          source.part.shape().str(), shape.str());
    }
    require<ModelError>(missing.empty(), kWhere,
                        "expected every tensor of the model that "
                        "config.json describes, but the file lacks {}",
                        listed(missing));
    for (const std::string& name : files_.names()) {
      if (used_.count(name) > 0 || is_ignored(family_.weights, name) ||
          is_head_name(family_.weights, prefix_, name) || is_other_pooler(name))
        continue;
      surplus.push_back(name);
    }
    require<ModelError>(surplus.empty(), kWhere,
                        "expected only tensors of the model that "
                        "config.json describes, got {}",
                        listed(surplus));
  }

  // The pooler of a model whose head has none.
  bool is_other_pooler(const std::string& name) const {
    return name.starts_with(prefix_.trunk + "pooler.");
  }

  // A part that is a whole parameter, stored as it is needed.
  bool can_lend(const Source& source) const {
    const Shape& whole = source.part.parameter->var.value().shape();
    if (source.name.empty() || source.part.transposed || source.part.rows != whole[0] ||
        files_.is_quantized(source.name))
      return false;
    return files_.shape(source.name) == whole &&
           files_.tensor(source.name).dtype() == DType::kFloat32;
  }

  // One of the matrices below each other that make up a parameter.
  std::optional<ops::QuantizedWeight> stored_part(const Source& source) const {
    if (source.name.empty() || source.part.transposed || source.part.shape().rank() != 2 ||
        files_.shape(source.name) != source.part.shape())
      return std::nullopt;
    if (files_.is_quantized(source.name))
      return ops::QuantizedWeight(files_.quantized(source.name));
    const Tensor tensor = files_.tensor(source.name);
    const DType type = tensor.dtype();
    if (type != DType::kFloat32 && type != DType::kBFloat16 && type != DType::kFloat16)
      return std::nullopt;
    return ops::QuantizedWeight(tensor);
  }

  void lend_stored(Transformer& model) const {
    for (std::size_t i = 0, end = 0; i < sources_.size(); i = end) {
      const nn::Parameter& parameter = *sources_[i].part.parameter;
      std::vector<ops::QuantizedWeight> parts;
      bool whole = true;
      for (end = i; end < sources_.size() && sources_[end].part.parameter == &parameter; ++end) {
        const std::optional<ops::QuantizedWeight> part =
            whole ? stored_part(sources_[end]) : std::nullopt;
        whole = part.has_value();
        if (whole) parts.push_back(*part);
      }
      if (whole)
        model.module().lend(parameter.name, std::make_shared<const ops::QuantizedWeight>(
                                                ops::QuantizedWeight::stack(parts)));
    }
  }

  void lend(Transformer& model) const {
    for (const Source& source : sources_) {
      if (source.part.parameter->lent || !can_lend(source)) continue;
      const Tensor tensor = files_.tensor(source.name);
      check_finite(source.name, tensor);
      model.module().lend(source.part.parameter->name, tensor);
    }
  }

  static void check_finite(const std::string& name, const Tensor& tensor) {
    const std::int64_t bad = ops::find_non_finite(tensor);
    require<ModelError>(bad < 0, kWhere,
                        "{}: expected finite numbers, got NaN or infinity at element {}", name,
                        bad);
  }

  // Copies what is not lent; gives fresh values to what the file lacks.
  std::vector<std::string> fill(Transformer& model) const {
    std::set<std::string> fresh;
    for (const Source& source : sources_) {
      const nn::Parameter& parameter = *source.part.parameter;
      if (parameter.lent) continue;
      if (source.name.empty() || files_.shape(source.name) != source.part.shape()) {
        if (fresh.insert(parameter.name).second)
          nn::initialise(parameter.var.value(), parameter.init, options_.seed, parameter.name);
        continue;
      }
      const Tensor to = source.part.value();
      copy(source.name, to);
      if (to.is_contiguous()) check_finite(source.name, to);
    }
    if (!options_.read_only) warn_of_ties(model);
    return {fresh.begin(), fresh.end()};
  }

  void copy(const std::string& name, const Tensor& to) const {
    if (files_.is_quantized(name)) return to.copy_from(ops::dequantize(files_.quantized(name)));
    const Tensor from = files_.tensor(name);
    require<ModelError>(is_floating(from.dtype()), kWhere,
                        "{}: expected floating-point numbers, got {}", name,
                        dtype_name(from.dtype()));
    to.copy_from(from);
  }

  // B61: of two different matrices that should be one, the embedding is taken, and it is said.
  void warn_of_ties(const Transformer& model) const {
    for (const std::string& name : tied_names_) {
      if (!files_.contains(name)) continue;
      const Tensor table = model.module().find("embeddings.token.weight")->var.value();
      const Tensor other = files_.tensor(name).to(table.dtype()).contiguous();
      if (other.shape() == table.shape() &&
          std::equal(table.data<float>(), table.data<float>() + table.numel(), other.data<float>()))
        continue;
      log_message(LogLevel::kWarning,
                  fmt::format("{} differs from the token embedding that config.json ties it to; "
                              "the embedding is used",
                              name));
    }
  }

  const io::WeightFiles& files_;
  const LoadOptions& options_;
  JsonReader reader_;
  const Family& family_;
  HeadKind head_;
  FilePrefix prefix_;
  std::vector<Source> sources_;
  std::set<std::string> used_;
  std::vector<std::string> tied_names_;
};

}  // namespace

Checkpoint load_checkpoint(const io::WeightFiles& files, const LoadOptions& options) {
  return Loader(files, options).load();
}

Checkpoint load_checkpoint(const std::filesystem::path& path, const LoadOptions& options) {
  return load_checkpoint(io::WeightFiles::open(path), options);
}

bool is_known_family(const Json& config) {
  const Json* type = config.find(kBaseModelType);
  if (type == nullptr) type = config.find("model_type");
  return type != nullptr && type->is_string() &&
         std::any_of(families().begin(), families().end(),
                     [&](const Family* family) { return family->model_type == type->as_string(); });
}

void save_checkpoint(const Json& json, const Transformer& model,
                     const std::filesystem::path& folder) {
  const Family& family = family_of(JsonReader(json));
  const TransformerConfig& config = model.config();
  const bool bare = config.head.kind == HeadKind::kNone && !family.weights.prefix_of_bare;
  const FilePrefix prefix{bare ? "" : std::string(family.weights.prefix), ""};
  std::vector<std::pair<std::string, Tensor>> tensors;
  for (const StoredPart& part : stored_parts(family.weights, config, model.module(), prefix))
    tensors.emplace_back(part.names.front(), part.value().contiguous());
  std::error_code code;
  std::filesystem::create_directories(folder, code);
  require<IoError>(!code, "save", "expected a folder that can be made, got {} for {}",
                   code.message(), folder.string());
  io::save_safetensors(folder / "model.safetensors", tensors, {{"format", "pt"}});
  write_file_atomic(folder / "config.json", json.dump(2) + "\n");
}

}  // namespace qkv::inline v0
