// A family of published models: how its config.json is read, and what its weights are called.
// Adding one: a file in this folder and a line in registry.cc (CONTRIBUTING.md).
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "models/json_reader.h"
#include "models/transformer_config.h"

namespace qkv::inline v0 {

// Rows of our parameter that a tensor of the file holds: ours are fused, files have q, k and v, or
// gate and up, one by one.
enum class WeightPart { kWhole, kQuery, kKey, kValue, kGate, kUp };

// One line of the map between names. `own` and `file` are paths without the last part (".weight",
// ".bias"), or whole names; {} stands for the layer's number. In `own` the stack's name is left
// out: "layers.{}.attention.qkv", "norm". In `file` a leading ^ is the trunk's prefix. Of several
// lines for one part the first is written, and any is read.
struct WeightRule {
  std::string_view own, file;
  WeightPart part = WeightPart::kWhole;
  bool transposed = false;            // a matrix of the file is [in, out] (GPT-2)
  std::optional<HeadKind> only = {};  // in models with this head
};

// One table of two: families share most of their names.
template <std::size_t kFirst, std::size_t kSecond>
constexpr std::array<WeightRule, kFirst + kSecond> join(
    const std::array<WeightRule, kFirst>& first, const std::array<WeightRule, kSecond>& second) {
  std::array<WeightRule, kFirst + kSecond> all{};
  std::copy(first.begin(), first.end(), all.begin());
  std::copy(second.begin(), second.end(), all.begin() + kFirst);
  return all;
}

struct WeightMap {
  std::string_view prefix;  // "bert.": of the trunk in a model with a head, absent in a bare trunk
  bool prefix_of_bare = false;  // a bare trunk has it too
  std::span<const WeightRule> rules;
  // Tensors of the file that are no weights, * standing for any text.
  std::span<const std::string_view> ignored;
};

struct Architecture {
  std::string_view name;  // as in config.json's architectures: "BertForMaskedLM"
  HeadKind head;
};

struct Family {
  std::string_view model_type;  // "bert"
  std::span<const Architecture> architectures;
  // Everything but model_type and head.kind, which are set; head.labels too, where there are any.
  // ModelError naming the key for what it does not know.
  void (*read)(const JsonReader& reader, TransformerConfig& config);
  WeightMap weights;
};

// Keys beside model_type "qkv" of a family's trunk with a head that the family does not have: a
// linear layer over tokens pooled like this.
inline constexpr const char* kBaseModelType = "base_model_type";
inline constexpr const char* kClassifierPooling = "classifier_pooling";

// All families, in the order of docs/models.md.
std::span<const Family* const> families();
// ModelError naming the known ones.
const Family& family_of(const JsonReader& config);
HeadKind head_of(const Family& family, const JsonReader& config);
// The family's configuration, checked as a whole. head: another one than the file's.
TransformerConfig read_config(const Family& family, const JsonReader& reader, HeadKind head);

extern const Family kBert, kRoberta, kXlmRoberta, kDistilBert, kMpnet, kModernBert;
extern const Family kGpt2, kLlama, kMistral, kQwen2, kQwen3, kGemma3;

// Shared by the readers.

// Heads of equal size that fill the width, from keys of these names.
void read_heads(const JsonReader& reader, const char* width, const char* heads,
                TransformerConfig& config);
// RoBERTa's head, which MPNet has too.
inline constexpr std::array kRobertaHead{
    WeightRule{"pooler", "classifier.dense", WeightPart::kWhole, false, HeadKind::kSequence},
    WeightRule{"pooler", "^pooler.dense", WeightPart::kWhole, false, HeadKind::kNone},
    WeightRule{"classifier", "classifier.out_proj", WeightPart::kWhole, false, HeadKind::kSequence},
    WeightRule{"classifier", "qa_outputs", WeightPart::kWhole, false, HeadKind::kAnswer},
    WeightRule{"classifier", "classifier", WeightPart::kWhole, false, HeadKind::kTokens},
    WeightRule{"head.dense", "lm_head.dense"},
    WeightRule{"head.norm", "lm_head.layer_norm"},
    WeightRule{"head.out.weight", "lm_head.decoder.weight"},
    WeightRule{"head.out.bias", "lm_head.bias"},
    WeightRule{"head.out.bias", "lm_head.decoder.bias"},
};

// hidden_act and the like: a plain activation, by Hugging Face's names.
ops::Activation read_activation(const JsonReader& reader, const char* key);
// The same for a feed-forward layer of gate and up: silu -> swiglu, gelu -> geglu, ...
ops::Activation read_gated_activation(const JsonReader& reader, const char* key);
// Rotary positions from rope_parameters, or rope_theta and rope_scaling. `parameters`: the object
// of one kind of layer, where the file has several. default_base: where none is named.
ops::RopeOptions read_rope(const JsonReader& reader, const Json* parameters, double default_base);
// rope_parameters, if it is there, or null.
const Json* rope_parameters(const JsonReader& reader);
// A key that must have this value where it is there: an option that no published model uses.
void expect_text(const JsonReader& reader, const char* key, std::string_view expected);
void expect_boolean(const JsonReader& reader, const char* key, bool expected);

}  // namespace qkv::inline v0
