// GGUF models as Hugging Face folders: names, configuration, vocabulary.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/excerpt.h"
#include "io/weight_impl.h"

namespace qkv::inline v0::io {
namespace {

// What sets one architecture apart from Llama, as data.
struct Architecture {
  const char *gguf, *model_type, *class_name;
  bool interleaved_rope;  // rows of query and key are stored in the order of adjacent pairs
  bool norms_plus_one;    // norms' weights are stored with 1 added
  bool four_norms;        // norms before and behind attention and feed-forward
};
constexpr Architecture kArchitectures[] = {
    {"llama", "llama", "LlamaForCausalLM", true, false, false},
    {"mistral", "mistral", "MistralForCausalLM", true, false, false},
    {"qwen2", "qwen2", "Qwen2ForCausalLM", false, false, false},
    {"qwen3", "qwen3", "Qwen3ForCausalLM", false, false, false},
    {"gemma3", "gemma3_text", "Gemma3ForCausalLM", false, true, true},
};

using NamePair = std::pair<std::string_view, std::string_view>;
constexpr NamePair kOuterNames[] = {
    {"token_embd", "model.embed_tokens"}, {"output_norm", "model.norm"}, {"output", "lm_head"}};
constexpr NamePair kLayerNames[] = {
    {"attn_norm", "input_layernorm"},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
    {"ffn_norm", "post_attention_layernorm"},
};
// Instead of the last of these, and in addition.
constexpr NamePair kFourNorms[] = {{"ffn_norm", "pre_feedforward_layernorm"},
                                   {"post_attention_norm", "post_attention_layernorm"},
                                   {"post_ffw_norm", "post_feedforward_layernorm"}};

template <std::size_t kSize>
std::string_view look_up(const NamePair (&names)[kSize], std::string_view name) {
  for (const auto& [from, to] : names)
    if (from == name) return to;
  return {};
}

// "blk.3.attn_q.weight" to "model.layers.3.self_attn.q_proj.weight"; empty if it is not known.
std::string hugging_face_name(const Architecture& architecture, std::string_view name) {
  const std::size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return "";
  const std::string_view kind = name.substr(dot + 1);
  if (kind != "weight" && kind != "bias") return "";
  std::string_view stem = name.substr(0, dot);
  if (const std::string_view outer = look_up(kOuterNames, stem); !outer.empty())
    return fmt::format("{}.{}", outer, kind);
  if (!stem.starts_with("blk.")) return "";
  stem.remove_prefix(4);
  const std::size_t end = stem.find('.');
  if (end == std::string_view::npos || end == 0 ||
      stem.substr(0, end).find_first_not_of("0123456789") != std::string_view::npos)
    return "";
  std::string_view inner;
  if (architecture.four_norms) inner = look_up(kFourNorms, stem.substr(end + 1));
  if (inner.empty()) inner = look_up(kLayerNames, stem.substr(end + 1));
  if (inner.empty()) return "";
  return fmt::format("model.layers.{}.{}.{}", stem.substr(0, end), inner, kind);
}

// Keys of one architecture: "llama.block_count".
class Keys {
 public:
  Keys(const Json& metadata, std::string prefix)
      : metadata_(metadata), prefix_(std::move(prefix)) {}

  const Json* find(const char* name) const { return metadata_.find(prefix_ + "." + name); }
  std::int64_t integer(const char* name) const { return needed(name).as_int(); }
  std::int64_t integer(const char* name, std::int64_t otherwise) const {
    const Json* value = find(name);
    return value == nullptr ? otherwise : value->as_int();
  }
  double number(const char* name) const { return needed(name).as_double(); }
  double number(const char* name, double otherwise) const {
    const Json* value = find(name);
    return value == nullptr ? otherwise : value->as_double();
  }
  std::string word(const char* name) const {
    const Json* value = find(name);
    return value == nullptr ? "" : value->as_string();
  }

 private:
  const Json& needed(const char* name) const {
    const Json* value = find(name);
    require<DataError>(value != nullptr, "gguf", "expected the key '{}.{}', got none", prefix_,
                       name);
    return *value;
  }
  const Json& metadata_;
  std::string prefix_;
};

// The factors by which Llama 3 slows its frequencies are stored as a tensor. The four numbers of
// config.json are found again: only those of the published models exist.
Json llama3_scaling(const GgufTensor& tensor, double theta, std::int64_t head_dim) {
  require<DataError>(tensor.dense.defined() && tensor.dense.dtype() == DType::kFloat32 &&
                         tensor.dense.numel() == head_dim / 2,
                     "gguf", "expected rope_freqs.weight as {} float32, got {} {}", head_dim / 2,
                     tensor.dense.defined() ? dtype_name(tensor.dense.dtype()) : "blocks",
                     tensor.shape.str());
  const float* factors = tensor.dense.data<float>();
  const double factor = static_cast<double>(factors[head_dim / 2 - 1]);
  constexpr double kLow = 1, kHigh = 4, kOriginal = 8192, kTwoPi = 6.283185307179586;
  for (std::int64_t i = 0; i < head_dim / 2; ++i) {
    const double wave =
        kTwoPi * std::pow(theta, 2 * static_cast<double>(i) / static_cast<double>(head_dim));
    const double smooth = std::clamp((kOriginal / wave - kLow) / (kHigh - kLow), 0.0, 1.0);
    const double expected = 1 / ((1 - smooth) / factor + smooth);
    require<UnsupportedError>(
        std::abs(static_cast<double>(factors[i]) - expected) <= 1e-3 * expected, "gguf",
        "expected the frequency factors of Llama 3 in rope_freqs.weight, got {} for {} at {}",
        factors[i], expected, i);
  }
  Json scaling = Json::object();
  scaling["rope_type"] = "llama3";
  scaling["factor"] = factor;
  scaling["low_freq_factor"] = kLow;
  scaling["high_freq_factor"] = kHigh;
  scaling["original_max_position_embeddings"] = static_cast<std::int64_t>(kOriginal);
  return scaling;
}

// Null for none.
Json rope_scaling(const Keys& keys) {
  const std::string type = keys.word("rope.scaling.type");
  const double factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 1));
  if (type == "none" || (type.empty() && factor == 1)) return {};
  require<UnsupportedError>(type.empty() || type == "linear" || type == "yarn", "gguf",
                            "expected rope.scaling.type none, linear or yarn, got '{}'",
                            excerpt(type));
  Json scaling = Json::object();
  scaling["rope_type"] = type.empty() ? "linear" : type;
  scaling["factor"] = factor;
  if (type == "yarn") {
    scaling["original_max_position_embeddings"] =
        keys.integer("rope.scaling.original_context_length");
    if (keys.find("rope.scaling.yarn_beta_fast") != nullptr)
      scaling["beta_fast"] = keys.number("rope.scaling.yarn_beta_fast");
    if (keys.find("rope.scaling.yarn_beta_slow") != nullptr)
      scaling["beta_slow"] = keys.number("rope.scaling.yarn_beta_slow");
  }
  return scaling;
}

const GgufTensor* find_tensor(const GgufFile& file, std::string_view name) {
  for (const GgufTensor& tensor : file.tensors())
    if (tensor.name == name) return &tensor;
  return nullptr;
}

void add_gemma_keys(const Keys& keys, std::int64_t head_dim, std::int64_t layers, Json& config) {
  config["hidden_activation"] = "gelu_pytorch_tanh";
  config["query_pre_attn_scalar"] = head_dim;
  config["rope_local_base_freq"] = keys.number("rope.local.freq_base", 10000);
  constexpr std::int64_t kGlobalEvery = 6;
  Json::Array types;
  for (std::int64_t i = 0; i < layers; ++i)
    types.emplace_back((i + 1) % kGlobalEvery == 0 ? "full_attention" : "sliding_attention");
  config["layer_types"] = std::move(types);
}

Json config_of(const GgufFile& file, const Architecture& architecture) {
  const Keys keys(file.metadata(), architecture.gguf);
  const std::int64_t heads = keys.integer("attention.head_count"),
                     width = keys.integer("embedding_length"), layers = keys.integer("block_count");
  constexpr std::int64_t kMost = 1 << 24;  // keeps products of two of them in range
  for (const std::int64_t number : {heads, width, layers})
    require<DataError>(number >= 1 && number <= kMost, "gguf",
                       "expected head_count, embedding_length and block_count from 1 to {}, got {}",
                       kMost, number);
  const std::int64_t head_dim = keys.integer("attention.key_length", width / heads);
  require<DataError>(head_dim >= 2 && head_dim % 2 == 0 && head_dim <= kMost, "gguf",
                     "expected an even head size, got {}", head_dim);
  const GgufTensor* embedding = find_tensor(file, "token_embd.weight");
  require<DataError>(embedding != nullptr && embedding->shape.rank() == 2, "gguf",
                     "expected a matrix token_embd.weight, got none");
  const double theta = keys.number("rope.freq_base", 10000);
  Json config = Json::object();
  config["architectures"] = Json::Array{architecture.class_name};
  config["model_type"] = architecture.model_type;
  config["vocab_size"] = embedding->shape[0];
  config["hidden_size"] = width;
  config["intermediate_size"] = keys.integer("feed_forward_length");
  config["num_hidden_layers"] = layers;
  config["num_attention_heads"] = heads;
  config["num_key_value_heads"] = keys.integer("attention.head_count_kv", heads);
  config["head_dim"] = head_dim;
  config["max_position_embeddings"] = keys.integer("context_length");
  config["rms_norm_eps"] = keys.number("attention.layer_norm_rms_epsilon");
  config["rope_theta"] = theta;
  config["hidden_act"] = "silu";
  config["tie_word_embeddings"] = find_tensor(file, "output.weight") == nullptr;
  if (keys.find("attention.sliding_window") != nullptr)
    config["sliding_window"] = keys.integer("attention.sliding_window");
  if (architecture.four_norms) add_gemma_keys(keys, head_dim, layers, config);
  const GgufTensor* factors = find_tensor(file, "rope_freqs.weight");
  Json scaling =
      factors != nullptr ? llama3_scaling(*factors, theta, head_dim) : rope_scaling(keys);
  if (!scaling.is_null()) config["rope_scaling"] = std::move(scaling);
  const Keys tokenizer(file.metadata(), "tokenizer.ggml");
  for (const char* name : {"bos_token_id", "eos_token_id"})
    if (const Json* id = tokenizer.find(name)) config[name] = id->as_int();
  const std::int64_t rotated = keys.integer("rope.dimension_count", head_dim);
  require<UnsupportedError>(rotated == head_dim, "gguf",
                            "expected rotary positions over the whole head of {}, got {}", head_dim,
                            rotated);
  return config;
}

WeightEntry entry_of(const GgufTensor& tensor, const Architecture& architecture,
                     const Json& config) {
  WeightEntry entry;
  entry.shape = tensor.shape;
  entry.dense = tensor.dense;
  entry.blocks = tensor.blocks;
  entry.unreadable = tensor.unreadable;
  const std::string_view name = tensor.name;
  const bool query = name.find(".attn_q.") != std::string_view::npos,
             key = name.find(".attn_k.") != std::string_view::npos;
  if (architecture.interleaved_rope && (query || key)) {
    entry.change = WeightChange::kHalfSplit;
    entry.heads = config.at(query ? "num_attention_heads" : "num_key_value_heads").as_int();
    require<DataError>(entry.heads >= 1 && tensor.shape[0] % entry.heads == 0 &&
                           tensor.shape[0] / entry.heads % 2 == 0,
                       "gguf", "expected '{}' in {} heads of even size, got {}", name, entry.heads,
                       tensor.shape.str());
  }
  if (architecture.norms_plus_one && name.ends_with("norm.weight")) {
    require<DataError>(tensor.dense.defined() && is_floating(tensor.dense.dtype()), "gguf",
                       "expected the norm '{}' as floating-point numbers, got others", name);
    entry.change = WeightChange::kMinusOne;
  }
  return entry;
}

const Architecture& architecture_of(const GgufFile& file) {
  const std::string& name = file.metadata().at("general.architecture").as_string();
  std::string known;
  for (const Architecture& architecture : kArchitectures) {
    if (name == architecture.gguf) return architecture;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", architecture.gguf);
  }
  fail<UnsupportedError>("gguf", "expected an architecture of {}, got '{}'", known, excerpt(name));
}

void refuse_split_files(const Json& metadata) {
  const Json* count = metadata.find("split.count");
  require<UnsupportedError>(
      count == nullptr || count->as_int() <= 1, "gguf",
      "expected the model in one file, got one of {} parts; join them with: llama-gguf-split "
      "--merge FIRST_PART.gguf MODEL.gguf",
      count == nullptr ? 1 : count->as_int());
}

void translate(const std::string& file_name, WeightFiles::Impl& weights) {
  const GgufFile& file = *weights.gguf;
  refuse_split_files(file.metadata());
  const Architecture& architecture = architecture_of(file);
  weights.config = config_of(file, architecture);
  for (const GgufTensor& tensor : file.tensors()) {
    if (tensor.name == "rope_freqs.weight") continue;  // in config.json
    const std::string name = hugging_face_name(architecture, tensor.name);
    require<DataError>(!name.empty(), "gguf",
                       "expected only tensors of the architecture {}, got '{}'", architecture.gguf,
                       excerpt(tensor.name));
    WeightEntry entry = entry_of(tensor, architecture, weights.config);
    entry.file = file_name;
    weights.add(name, std::move(entry));
  }
}

std::optional<std::int32_t> token_id(const Keys& keys, const char* name) {
  const Json* value = keys.find(name);
  if (value == nullptr) return std::nullopt;
  const std::int64_t id = value->as_int();
  require<DataError>(id >= INT32_MIN && id <= INT32_MAX, "gguf",
                     "expected {} to be a token's id, got {}", name, id);
  return static_cast<std::int32_t>(id);
}

bool flag(const Keys& keys, const char* name, bool otherwise) {
  const Json* value = keys.find(name);
  return value == nullptr ? otherwise : value->as_bool();
}

}  // namespace

void read_gguf_weights(const std::filesystem::path& path, WeightFiles::Impl& weights) {
  weights.format = WeightFormat::kGguf;
  weights.gguf = GgufFile::open(path);
  weights.metadata = weights.gguf->metadata();
  try {
    translate(path.filename().string(), weights);
  } catch (const DataError& error) {
    fail<ModelError>("gguf", "'{}': {}", path.string(), error_reason(error));
  }
}

std::optional<text::EmbeddedVocabulary> gguf_vocabulary(const GgufFile& file) {
  const std::string prefix = "tokenizer.ggml";
  text::EmbeddedVocabulary vocabulary;
  vocabulary.tokens = file.strings(prefix + ".tokens");
  if (vocabulary.tokens.empty()) return std::nullopt;
  vocabulary.merges = file.strings(prefix + ".merges");
  vocabulary.scores = file.floats(prefix + ".scores");
  vocabulary.types = file.integers(prefix + ".token_type");
  const Keys keys(file.metadata(), prefix);
  try {
    vocabulary.model = keys.word("model");
    vocabulary.pre = keys.word("pre");
    vocabulary.bos = token_id(keys, "bos_token_id");
    vocabulary.eos = token_id(keys, "eos_token_id");
    vocabulary.unknown = token_id(keys, "unknown_token_id");
    vocabulary.padding = token_id(keys, "padding_token_id");
    // SentencePiece models put a begin before the text unless the file says otherwise.
    vocabulary.add_bos = flag(keys, "add_bos_token", vocabulary.model == "llama");
    vocabulary.add_eos = flag(keys, "add_eos_token", false);
    vocabulary.add_space_prefix = flag(keys, "add_space_prefix", true);
  } catch (const DataError& error) {
    fail<ModelError>("gguf", "{}", error_reason(error));
  }
  return vocabulary;
}

}  // namespace qkv::inline v0::io
