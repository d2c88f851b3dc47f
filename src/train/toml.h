// TOML text as a JSON tree that remembers where each key stands. The one place that knows the TOML
// library.
#pragma once

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include "base/json.h"

namespace qkv::inline v0::train {

struct TomlDocument {
  Json root = Json::object();
  std::map<std::string, int> lines;         // "train.steps" -> line of the file, from 1
  std::set<std::string> from_command_line;  // keys set by an override
};

// ConfigError with the line for text that is not TOML. Dates are refused: no key takes one.
TomlDocument parse_toml(std::string_view text, const std::string& name);

// Sets one key: "train.steps=100". The value is TOML (100, 0.5, true, "text", [1, 2]); what is not
// is taken as plain text. ConfigError without '=' or with an empty key.
void apply_override(TomlDocument& document, std::string_view assignment);

}  // namespace qkv::inline v0::train
