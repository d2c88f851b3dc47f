#include "train/toml.h"

// The whole library in this file: nothing else needs it, and the program starts faster with one
// shared object less.
#define TOML_HEADER_ONLY 1
#include <toml++/toml.h>

#include "base/check.h"

namespace qkv::inline v0::train {
namespace {

Json to_json(const toml::node& node, const std::string& path, TomlDocument& document) {
  if (!path.empty()) document.lines[path] = static_cast<int>(node.source().begin.line);
  if (const auto* table = node.as_table()) {
    Json out = Json::object();
    for (const auto& [key, value] : *table) {
      const std::string name(key.str());
      out[name] = to_json(value, path.empty() ? name : path + "." + name, document);
    }
    return out;
  }
  if (const auto* array = node.as_array()) {
    Json out = Json::array();
    for (const toml::node& item : *array) out.push_back(to_json(item, "", document));
    return out;
  }
  if (const auto* value = node.as_string()) return Json(value->get());
  if (const auto* value = node.as_integer()) return Json(value->get());
  if (const auto* value = node.as_floating_point()) return Json(value->get());
  if (const auto* value = node.as_boolean()) return Json(value->get());
  fail<ConfigError>("config", "{}: expected text, a number, true, false or a list, got a date",
                    path);
}

toml::table parse_table(std::string_view text, const std::string& name) {
  try {
    return toml::parse(text);
  } catch (const toml::parse_error& error) {
    const auto& at = error.source().begin;
    fail<ConfigError>("config", "{}:{}:{}: this is not TOML: {}", name, at.line, at.column,
                      error.description());
  }
}

std::string trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return std::string(text.substr(first, text.find_last_not_of(" \t") - first + 1));
}

// The value as TOML, or as plain text where it is not TOML ("cosine", a path).
Json override_value(const std::string& key, const std::string& text) {
  try {
    const toml::table table = toml::parse("value = " + text);
    TomlDocument unused;
    if (table.size() == 1) return to_json(*table.get("value"), key, unused);
  } catch (const toml::parse_error&) {
    return Json(text);  // plain text, as the header promises
  }
  return Json(text);
}

}  // namespace

TomlDocument parse_toml(std::string_view text, const std::string& name) {
  const std::size_t bad = find_invalid_utf8(text);
  require<ConfigError>(bad == std::string::npos, "config",
                       "{}: expected UTF-8, got something else at byte {}", name, bad);
  TomlDocument document;
  const toml::table table = parse_table(text, name);
  document.root = to_json(table, "", document);
  return document;
}

void apply_override(TomlDocument& document, std::string_view assignment) {
  const std::size_t equals = assignment.find('=');
  const std::string key =
      equals == std::string_view::npos ? "" : trimmed(assignment.substr(0, equals));
  require<ConfigError>(!key.empty(), "config", "expected --set section.key=value, got '{}'",
                       assignment);
  const Json value = override_value(key, trimmed(assignment.substr(equals + 1)));
  Json* node = &document.root;
  std::size_t start = 0;
  for (std::size_t dot = key.find('.'); dot != std::string::npos; dot = key.find('.', start)) {
    node = &(*node)[key.substr(start, dot - start)];
    if (!node->is_object()) *node = Json::object();
    start = dot + 1;
  }
  (*node)[key.substr(start)] = value;
  document.lines.erase(key);
  document.from_command_line.insert(key);
}

}  // namespace qkv::inline v0::train
