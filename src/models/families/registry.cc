#include <algorithm>
#include <array>

#include <fmt/core.h>

#include "base/check.h"
#include "models/families/family.h"

namespace qkv::inline v0 {
namespace {

constexpr std::array kFamilies{&kBert, &kRoberta, &kXlmRoberta, &kDistilBert, &kMpnet, &kModernBert,
                               &kGpt2, &kLlama,   &kMistral,    &kQwen2,      &kQwen3, &kGemma3};

// Labels that transformers gives a model whose config.json has none.
std::vector<std::string> default_labels(const JsonReader& reader) {
  std::vector<std::string> labels;
  const std::int64_t count = reader.integer_or("num_labels", 2);
  for (std::int64_t i = 0; i < count; ++i) labels.push_back(fmt::format("LABEL_{}", i));
  return labels;
}

std::string listed(const std::vector<std::string_view>& names) {
  std::string all;
  for (const std::string_view name : names)
    all += fmt::format("{}\"{}\"", all.empty() ? "" : ", ", name);
  return all;
}

}  // namespace

std::span<const Family* const> families() { return kFamilies; }

const Family& family_of(const JsonReader& config) {
  const std::string& type =
      config.text(config.absent(kBaseModelType) ? "model_type" : kBaseModelType);
  std::vector<std::string_view> known;
  for (const Family* family : kFamilies) {
    if (family->model_type == type) return *family;
    known.push_back(family->model_type);
  }
  fail<ModelError>("config.json", "model_type: expected one of {}, got \"{}\"", listed(known),
                   excerpt(type));
}

HeadKind head_of(const Family& family, const JsonReader& config) {
  if (config.absent("architectures"))
    return HeadKind::kNone;  // a bare trunk, as AutoModel reads it
  const Json& names = config.at("architectures");
  require<ModelError>(names.is_array() && names.size() == 1 && names.at(std::size_t{0}).is_string(),
                      "config.json", "architectures: expected an array with one name, got {}",
                      excerpt(names.dump()));
  const std::string& name = names.at(std::size_t{0}).as_string();
  std::vector<std::string_view> known;
  for (const Architecture& architecture : family.architectures) {
    if (architecture.name == name) return architecture.head;
    known.push_back(architecture.name);
  }
  fail<ModelError>("config.json",
                   "architectures: expected one of {} for model_type \"{}\", got \"{}\"",
                   listed(known), family.model_type, excerpt(name));
}

TransformerConfig read_config(const Family& family, const JsonReader& reader, HeadKind head) {
  TransformerConfig config;
  config.model_type = family.model_type;
  config.head.kind = head;
  if (head == HeadKind::kSequence || head == HeadKind::kTokens)
    config.head.labels = reader.absent("id2label") ? default_labels(reader) : read_labels(reader);
  family.read(reader, config);
  if (!reader.absent(kBaseModelType) && head == HeadKind::kSequence) {
    config.head.dense = config.head.norm = false;
    config.head.pooling = reader.named(kClassifierPooling, ops::parse_pooling);
  }
  std::string all;
  for (const std::string& fault : config.faults()) all += (all.empty() ? "" : "; ") + fault;
  require<ModelError>(all.empty(), "config.json", "{}", all);
  return config;
}

void read_heads(const JsonReader& reader, const char* width, const char* heads,
                TransformerConfig& config) {
  config.d_model = reader.integer(width);
  config.num_heads = config.num_kv_heads = reader.integer(heads);
  require<ModelError>(config.num_heads > 0 && config.d_model % config.num_heads == 0, "config.json",
                      "{}: expected a multiple of {} {}, got {}", width, heads, config.num_heads,
                      config.d_model);
  config.head_size = config.d_model / config.num_heads;
}

ops::Activation read_activation(const JsonReader& reader, const char* key) {
  const ops::Activation activation = reader.named(key, ops::parse_activation);
  require<ModelError>(!ops::is_gated(activation), "config.json",
                      "{}: expected an activation of one value, got \"{}\"", key, reader.text(key));
  return activation;
}

ops::Activation read_gated_activation(const JsonReader& reader, const char* key) {
  switch (read_activation(reader, key)) {
    case ops::Activation::kSilu:
      return ops::Activation::kSwiglu;
    case ops::Activation::kGelu:
      return ops::Activation::kGeglu;
    case ops::Activation::kGeluTanh:
      return ops::Activation::kGegluTanh;
    default:
      break;
  }
  fail<ModelError>(
      "config.json",
      "{}: expected an activation for a gate (silu, gelu, gelu_pytorch_tanh), got \"{}\"", key,
      reader.text(key));
}

void expect_text(const JsonReader& reader, const char* key, std::string_view expected) {
  if (reader.absent(key)) return;
  require<ModelError>(reader.text(key) == expected, "config.json",
                      "{}: expected \"{}\", the only kind that is known, got \"{}\"", key, expected,
                      excerpt(reader.text(key)));
}

void expect_boolean(const JsonReader& reader, const char* key, bool expected) {
  require<ModelError>(reader.boolean_or(key, expected) == expected, "config.json",
                      "{}: expected {}, the only kind that is known, got {}", key, expected,
                      !expected);
}

}  // namespace qkv::inline v0
