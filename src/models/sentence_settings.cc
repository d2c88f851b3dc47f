#include "models/sentence_settings.h"

#include <array>

#include <fmt/core.h>

#include "models/json_reader.h"

namespace qkv::inline v0 {
namespace {

namespace fs = std::filesystem;

std::optional<Json> read_json(const fs::path& path) {
  std::error_code code;
  if (!fs::exists(path, code)) return std::nullopt;
  return read_json_file(path);
}

struct PoolingKey {
  const char* key;
  std::optional<ops::Pooling> pooling;  // nothing: known, but not computed here
};
constexpr std::array kPoolingKeys{
    PoolingKey{"pooling_mode_cls_token", ops::Pooling::kFirst},
    PoolingKey{"pooling_mode_mean_tokens", ops::Pooling::kMean},
    PoolingKey{"pooling_mode_max_tokens", ops::Pooling::kMax},
    PoolingKey{"pooling_mode_lasttoken", ops::Pooling::kLast},
    PoolingKey{"pooling_mode_mean_sqrt_len_tokens", std::nullopt},
    PoolingKey{"pooling_mode_weightedmean_tokens", std::nullopt},
};

ops::Pooling read_pooling(const fs::path& path) {
  const std::optional<Json> json = read_json(path);
  const std::string name = path.string();
  require<ModelError>(json.has_value(), name.c_str(),
                      "expected the Pooling module's settings, got {}", "no such file");
  const JsonReader reader(*json);
  // Newer files name the mode in one key.
  if (!reader.absent("pooling_mode")) {
    const std::string& mode = reader.text("pooling_mode");
    if (mode == "cls") return ops::Pooling::kFirst;
    if (mode == "mean") return ops::Pooling::kMean;
    if (mode == "max") return ops::Pooling::kMax;
    if (mode == "lasttoken") return ops::Pooling::kLast;
    fail<ModelError>(name.c_str(),
                     "pooling_mode: expected one of \"cls\", \"mean\", \"max\", \"lasttoken\", got "
                     "\"{}\"",
                     excerpt(mode));
  }
  std::optional<ops::Pooling> found;
  for (const PoolingKey& key : kPoolingKeys) {
    if (!reader.boolean_or(key.key, false)) continue;
    require<ModelError>(key.pooling.has_value() && !found, name.c_str(),
                        "expected one pooling mode (cls, mean, max or last token), got {}",
                        key.key);
    found = key.pooling;
  }
  require<ModelError>(found.has_value(), name.c_str(), "expected a pooling mode, got {}", "none");
  require<ModelError>(reader.boolean_or("include_prompt", true), name.c_str(),
                      "include_prompt: expected true, got {}", false);
  return *found;
}

// The last part of "sentence_transformers.models.Pooling".
std::string_view class_name(std::string_view type) { return type.substr(type.rfind('.') + 1); }

void read_modules(const Json& modules, const fs::path& folder, SentenceSettings& settings) {
  require<ModelError>(modules.is_array(), "modules.json", "expected an array, got {}",
                      modules.type_name());
  settings.normalize = false;
  bool pooled = false;
  for (const Json& module : modules.as_array()) {
    const JsonReader reader(module);
    const std::string& type = reader.text("type");
    if (class_name(type) == "Transformer") continue;
    if (class_name(type) == "Pooling") {
      settings.pooling = read_pooling(folder / reader.text("path") / "config.json");
      pooled = true;
    } else if (class_name(type) == "Normalize") {
      settings.normalize = true;
    } else {
      fail<ModelError>("modules.json",
                       "type: expected a module Transformer, Pooling or Normalize, got \"{}\"",
                       excerpt(type));
    }
  }
  require<ModelError>(pooled, "modules.json", "expected a module Pooling, got {}", "none");
}

void read_prompts(const JsonReader& reader, SentenceSettings& settings) {
  settings.default_prompt = reader.text_or("default_prompt_name", "");
  if (reader.absent("prompts")) return;
  const Json& prompts = reader.at("prompts");
  require<ModelError>(prompts.is_object(), "config_sentence_transformers.json",
                      "prompts: expected an object, got {}", prompts.type_name());
  for (const auto& [name, text] : prompts.as_object()) {
    require<ModelError>(text.is_string(), "config_sentence_transformers.json",
                        "prompts: expected a text for {}, got {}", name, text.type_name());
    settings.prompts.emplace_back(name, text.as_string());
  }
}

}  // namespace

const std::string& SentenceSettings::prompt(const std::string& name) const {
  std::string known;
  for (const auto& [key, text] : prompts) {
    if (key == name) return text;
    known += fmt::format("{}\"{}\"", known.empty() ? "" : ", ", key);
  }
  fail<ArgumentError>("prompt", "expected one of the model's prompts ({}), got \"{}\"",
                      known.empty() ? "it has none" : known, name);
}

SentenceSettings read_sentence_settings(const fs::path& folder) {
  SentenceSettings settings;
  if (const auto modules = read_json(folder / "modules.json"))
    read_modules(*modules, folder, settings);
  if (const auto json = read_json(folder / "sentence_bert_config.json")) {
    const JsonReader reader(*json);
    if (!reader.absent("max_seq_length")) {
      settings.max_length = reader.integer("max_seq_length");
      require<ModelError>(*settings.max_length >= 1, "sentence_bert_config.json",
                          "max_seq_length: expected at least 1, got {}", *settings.max_length);
    }
    require<ModelError>(!reader.boolean_or("do_lower_case", false), "sentence_bert_config.json",
                        "do_lower_case: expected false, got {}; a tokenizer can lower letters too",
                        true);
  }
  if (const auto json = read_json(folder / "config_sentence_transformers.json"))
    read_prompts(JsonReader(*json), settings);
  if (!settings.default_prompt.empty()) (void)settings.prompt(settings.default_prompt);
  return settings;
}

}  // namespace qkv::inline v0
