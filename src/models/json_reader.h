// Typed reading of a configuration, with errors that name the key.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/excerpt.h"
#include "base/json.h"

namespace qkv::inline v0 {

// A file of a model's folder; ModelError with its path for what is no JSON.
Json read_json_file(const std::filesystem::path& path);

// Refers to the object, which must live as long. ModelError for whatever does not fit.
class JsonReader {
 public:
  explicit JsonReader(const Json& json) : json_(json) {
    require<ModelError>(json.is_object(), "config.json", "expected an object, got {}",
                        json.type_name());
  }
  const Json& at(const char* key) const {
    const Json* value = json_.find(key);
    require<ModelError>(value != nullptr, "config.json", "expected the key \"{}\", got none", key);
    return *value;
  }
  std::int64_t integer(const char* key) const {
    const Json& value = at(key);
    require<ModelError>(value.is_int(), "config.json", "{}: expected an integer, got {}", key,
                        excerpt(value.dump()));
    return value.as_int();
  }
  double number(const char* key) const {
    const Json& value = at(key);
    require<ModelError>(value.is_number(), "config.json", "{}: expected a number, got {}", key,
                        excerpt(value.dump()));
    return value.as_double();
  }
  bool boolean(const char* key) const {
    const Json& value = at(key);
    require<ModelError>(value.is_bool(), "config.json", "{}: expected true or false, got {}", key,
                        excerpt(value.dump()));
    return value.as_bool();
  }
  const std::string& text(const char* key) const {
    const Json& value = at(key);
    require<ModelError>(value.is_string(), "config.json", "{}: expected a text, got {}", key,
                        excerpt(value.dump()));
    return value.as_string();
  }
  // Keys that may be absent or null.
  std::int64_t integer_or(const char* key, std::int64_t fallback) const {
    return absent(key) ? fallback : integer(key);
  }
  double number_or(const char* key, double fallback) const {
    return absent(key) ? fallback : number(key);
  }
  std::string text_or(const char* key, const char* fallback) const {
    return absent(key) ? fallback : text(key);
  }
  bool boolean_or(const char* key, bool fallback) const {
    return absent(key) ? fallback : boolean(key);
  }
  bool absent(const char* key) const {
    const Json* value = json_.find(key);
    return value == nullptr || value->is_null();
  }
  // A name that one of the parse functions understands.
  template <class Parse>
  auto named(const char* key, Parse parse) const {
    const std::string& name = text(key);
    try {
      return parse(name);
    } catch (const ConfigError& error) {
      fail<ModelError>("config.json", "{}: {}", key, error_reason(error));
    }
  }

  const Json& json() const { return json_; }

 private:
  const Json& json_;
};

// Class names by their number, from id2label.
inline std::vector<std::string> read_labels(const JsonReader& reader) {
  const Json& id2label = reader.at("id2label");
  require<ModelError>(id2label.is_object() && id2label.size() > 0, "config.json",
                      "id2label: expected an object of class names, got {}", id2label.type_name());
  std::vector<std::string> labels;
  for (std::size_t i = 0; i < id2label.size(); ++i) {
    const Json* name = id2label.find(std::to_string(i));
    require<ModelError>(
        name != nullptr && name->is_string(), "config.json",
        "id2label: expected a class name under each of \"0\" to \"{}\", got none under \"{}\"",
        id2label.size() - 1, i);
    labels.push_back(name->as_string());
  }
  return labels;
}

}  // namespace qkv::inline v0
