#include "train/config_reader.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "base/excerpt.h"
#include "base/nearest.h"
#include "base/path.h"

namespace qkv::inline v0::train {
namespace {

const Json* lookup(const Json& root, std::string_view key) {
  const Json* node = &root;
  for (std::size_t start = 0; node != nullptr;) {
    const std::size_t dot = key.find('.', start);
    node = node->find(key.substr(start, dot == std::string_view::npos ? dot : dot - start));
    if (dot == std::string_view::npos) break;
    start = dot + 1;
  }
  return node;
}

std::string last_name(const std::string& key) { return key.substr(key.rfind('.') + 1); }

std::string joined(std::initializer_list<const char*> words) {
  std::string out;
  for (const char* word : words) out += (out.empty() ? "" : ", ") + std::string(word);
  return out;
}

bool contains(std::initializer_list<const char*> words, const std::string& word) {
  return std::any_of(words.begin(), words.end(), [&](const char* w) { return word == w; });
}

}  // namespace

bool ConfigReader::has(std::string_view key) const {
  return lookup(document_.root, key) != nullptr;
}

const Json* ConfigReader::find(const std::string& key) {
  known_.push_back(key);
  return lookup(document_.root, key);
}

void ConfigReader::fault(const std::string& key, const std::string& message) {
  const auto line = document_.lines.find(key);
  faults_.push_back(line == document_.lines.end()
                        ? fmt::format("{}: {}", key, message)
                        : fmt::format("{} (line {}): {}", key, line->second, message));
}

bool ConfigReader::typed(const std::string& key, const Json* value, bool fits,
                         const char* expected) {
  if (value == nullptr) return false;
  if (!fits) {
    fault(key, fmt::format("expected {}, got {}", expected,
                           value->is_object() ? std::string("a table") : excerpt(value->dump())));
  }
  return fits;
}

void ConfigReader::integer(const std::string& key, std::int64_t& out, std::int64_t min,
                           std::int64_t max) {
  const Json* value = find(key);
  if (!typed(key, value, value != nullptr && value->is_int(), "a whole number")) return;
  const std::int64_t n = value->as_int();
  if (n < min || n > max) return fault(key, fmt::format("expected {} to {}, got {}", min, max, n));
  out = n;
}

void ConfigReader::number(const std::string& key, double& out, double min, double max) {
  const Json* value = find(key);
  if (!typed(key, value, value != nullptr && value->is_number(), "a number")) return;
  const double x = value->as_double();
  if (!(x >= min && x <= max))
    return fault(key, fmt::format("expected {} to {}, got {}", min, max, x));
  out = x;
}

void ConfigReader::boolean(const std::string& key, bool& out) {
  const Json* value = find(key);
  if (typed(key, value, value != nullptr && value->is_bool(), "true or false"))
    out = value->as_bool();
}

void ConfigReader::text(const std::string& key, std::string& out) {
  const Json* value = find(key);
  if (!typed(key, value, value != nullptr && value->is_string(), "text in quotes")) return;
  if (value->as_string().empty()) return fault(key, "expected text, got an empty one");
  out = value->as_string();
}

void ConfigReader::texts(const std::string& key, std::vector<std::string>& out) {
  const Json* value = find(key);
  bool fits = value != nullptr && value->is_array();
  for (std::size_t i = 0; fits && i < value->size(); ++i) fits = value->at(i).is_string();
  if (!typed(key, value, fits, "a list of texts, [\"a\", \"b\"]")) return;
  out.clear();
  for (const Json& item : value->as_array()) out.push_back(item.as_string());
}

void ConfigReader::numbers(const std::string& key, std::vector<double>& out, std::size_t count,
                           double min, double max) {
  const Json* value = find(key);
  bool fits = value != nullptr && value->is_array() && value->size() == count;
  for (std::size_t i = 0; fits && i < count; ++i) {
    fits = value->at(i).is_number() && value->at(i).as_double() >= min &&
           value->at(i).as_double() <= max;
  }
  const std::string expected = fmt::format("a list of {} numbers from {} to {}", count, min, max);
  if (!typed(key, value, fits, expected.c_str())) return;
  out.clear();
  for (const Json& item : value->as_array()) out.push_back(item.as_double());
}

void ConfigReader::path(const std::string& key, std::filesystem::path& out) {
  std::string name;
  text(key, name);
  if (name.empty()) return;
  const std::filesystem::path given = name;
  const std::filesystem::path beside = folder_ / given;  // an absolute path stays as it is
  const bool here = document_.from_command_line.count(key) > 0 && path_exists(given);
  out = here ? std::filesystem::absolute(given) : std::filesystem::absolute(beside);
  out = out.lexically_normal();
  if (!path_exists(out)) {
    fault(key,
          fmt::format("expected an existing file or folder, found nothing at {}", out.string()));
  }
}

void ConfigReader::choice(const std::string& key, std::string& out,
                          std::initializer_list<const char*> known,
                          std::initializer_list<const char*> later) {
  std::string word;
  text(key, word);
  if (word.empty()) return;
  if (contains(known, word)) {
    out = word;
  } else if (contains(later, word)) {
    fault(key, fmt::format("\"{}\" is not part of this version; it has {}", word, joined(known)));
  } else {
    const std::string nearest =
        nearest_name(word, std::vector<std::string>(known.begin(), known.end()));
    fault(key, fmt::format("expected one of {}, got \"{}\"{}", joined(known), word,
                           nearest.empty() ? "" : "; did you mean \"" + nearest + "\"?"));
  }
}

void ConfigReader::refuse(const std::string& key, const std::string& reason) {
  if (find(key) != nullptr) fault(key, reason);
}

std::string ConfigReader::suggestion(const std::string& key) const {
  const std::string name = last_name(key);
  for (const std::string& known : known_) {  // right name, wrong table
    if (last_name(known) == name) return known;
  }
  const std::string prefix = key.substr(0, key.size() - name.size());
  std::vector<std::string> same, others;
  for (const std::string& known : known_) {
    const bool in_table = !prefix.empty() && known.rfind(prefix, 0) == 0;
    (in_table ? same : others).push_back(last_name(known));
  }
  const std::string near = nearest_name(name, same);
  if (!near.empty()) return prefix + near;
  const std::string far = nearest_name(name, others);
  for (const std::string& known : known_) {
    if (!far.empty() && last_name(known) == far) return known;
  }
  return {};
}

void ConfigReader::check_table(const Json& table, const std::string& prefix) {
  for (const auto& [name, value] : table.as_object()) {
    const std::string key = prefix + name;
    if (std::find(known_.begin(), known_.end(), key) != known_.end()) continue;
    const bool is_section =
        std::any_of(known_.begin(), known_.end(),
                    [&](const std::string& known) { return known.rfind(key + ".", 0) == 0; });
    if (is_section && value.is_object()) {
      check_table(value, key + ".");
    } else if (is_section) {
      fault(key, fmt::format("expected a table [{}], got {}", key, excerpt(value.dump())));
    } else if (value.is_object()) {
      std::vector<std::string> sections;
      for (const std::string& known : known_) sections.push_back(known.substr(0, known.find('.')));
      const std::string near = nearest_name(name, sections);
      fault(key, "unknown table" + (near.empty() ? "" : "; did you mean [" + near + "]?"));
    } else {
      const std::string near = suggestion(key);
      fault(key, "unknown key" + (near.empty() ? "" : "; did you mean " + near + "?"));
    }
  }
}

void ConfigReader::check_unknown() { check_table(document_.root, ""); }

}  // namespace qkv::inline v0::train
