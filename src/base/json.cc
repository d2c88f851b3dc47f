#include "base/json.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/excerpt.h"

namespace qkv::inline v0 {
namespace {

// Builds a Json from the parser's events. Open containers lie on a stack of our own, so depth costs
// no call stack.
class Builder {
 public:
  Builder(const std::string& where, int max_depth)
      : where_(where), max_depth_(static_cast<std::size_t>(max_depth)) {}

  Json take() { return std::move(root_); }

  bool null() { return add(Json()); }
  bool boolean(bool value) { return add(Json(value)); }
  bool number_integer(std::int64_t value) { return add(Json(value)); }
  bool number_unsigned(std::uint64_t value) {
    if (value > static_cast<std::uint64_t>(INT64_MAX)) return add(Json(static_cast<double>(value)));
    return add(Json(static_cast<std::int64_t>(value)));
  }
  bool number_float(double value, const std::string& text) {
    require<DataError>(std::isfinite(value), where_.c_str(),
                       "expected a number within the range of double, got {}", text);
    return add(Json(value));
  }
  bool string(std::string& value) { return add(Json(std::move(value))); }
  bool binary(std::vector<std::uint8_t>&) { return false; }  // not part of JSON text: never called
  bool start_object(std::size_t) { return open(Json::object()); }
  bool start_array(std::size_t) { return open(Json::array()); }
  bool key(std::string& value) {
    stack_.back().as_object().emplace_back().first = std::move(value);
    return true;
  }
  bool end_object() {
    refuse_duplicates(stack_.back().as_object());
    return close();
  }
  bool end_array() { return close(); }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::json::exception& error) {
    std::string_view reason = error.what();
    if (const std::size_t end = reason.find("] "); end != std::string_view::npos)
      reason.remove_prefix(end + 2);
    fail<DataError>(where_.c_str(), "expected valid JSON, got an error at byte {}: {}", position,
                    excerpt(reason, 240));
  }

 private:
  bool add(Json value) {
    if (stack_.empty()) {
      root_ = std::move(value);
    } else if (stack_.back().is_array()) {
      stack_.back().push_back(std::move(value));
    } else {
      stack_.back().as_object().back().second = std::move(value);
    }
    return true;
  }
  bool open(Json container) {
    require<DataError>(stack_.size() < max_depth_, where_.c_str(),
                       "expected JSON nested at most {} deep, got more", max_depth_);
    stack_.push_back(std::move(container));
    return true;
  }
  bool close() {
    Json value = std::move(stack_.back());
    stack_.pop_back();
    return add(std::move(value));
  }
  void refuse_duplicates(const Json::Object& object) const {
    std::vector<std::string_view> keys;
    keys.reserve(object.size());
    for (const Json::Member& member : object) keys.emplace_back(member.first);
    std::sort(keys.begin(), keys.end());
    const auto twin = std::adjacent_find(keys.begin(), keys.end());
    if (twin != keys.end())
      fail<DataError>(where_.c_str(), "expected each JSON key once, got '{}' twice",
                      excerpt(*twin));
  }

  const std::string& where_;
  std::size_t max_depth_;
  Json root_;
  std::vector<Json> stack_;
};

void append_escaped(std::string& out, char c) {
  switch (c) {
    case '"':
      out += "\\\"";
      return;
    case '\\':
      out += "\\\\";
      return;
    case '\n':
      out += "\\n";
      return;
    case '\r':
      out += "\\r";
      return;
    case '\t':
      out += "\\t";
      return;
    default:
      if (static_cast<unsigned char>(c) < 0x20) {
        out += fmt::format("\\u{:04x}", static_cast<int>(c));
      } else {
        out += c;
      }
  }
}

void append_string(std::string& out, std::string_view text) {
  out += '"';
  while (!text.empty()) {
    const std::size_t bad = std::min(find_invalid_utf8(text), text.size());
    for (const char c : text.substr(0, bad)) append_escaped(out, c);
    text.remove_prefix(bad);
    if (text.empty()) break;
    out += "\xEF\xBF\xBD";
    text.remove_prefix(1);
  }
  out += '"';
}

void append_double(std::string& out, double value) {
  if (!std::isfinite(value)) {
    out += "null";
    return;
  }
  std::array<char, 32> buffer;
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value).ptr;
  const std::string_view text(buffer.data(), static_cast<std::size_t>(end - buffer.data()));
  out += text;
  if (text.find_first_of(".e") == std::string_view::npos)
    out += ".0";  // stays a floating number when read back
}

void append_newline(std::string& out, int indent, int depth) {
  if (indent < 0) return;
  out += '\n';
  out.append(static_cast<std::size_t>(indent) * static_cast<std::size_t>(depth), ' ');
}

void append_value(std::string& out, const Json& value, int indent, int depth);

void append_array(std::string& out, const Json::Array& array, int indent, int depth) {
  out += '[';
  for (std::size_t i = 0; i < array.size(); ++i) {
    if (i > 0) out += ',';
    append_newline(out, indent, depth + 1);
    append_value(out, array[i], indent, depth + 1);
  }
  if (!array.empty()) append_newline(out, indent, depth);
  out += ']';
}

void append_object(std::string& out, const Json::Object& object, int indent, int depth) {
  out += '{';
  for (std::size_t i = 0; i < object.size(); ++i) {
    if (i > 0) out += ',';
    append_newline(out, indent, depth + 1);
    append_string(out, object[i].first);
    out += indent < 0 ? ":" : ": ";
    append_value(out, object[i].second, indent, depth + 1);
  }
  if (!object.empty()) append_newline(out, indent, depth);
  out += '}';
}

void append_value(std::string& out, const Json& value, int indent, int depth) {
  if (value.is_null()) {
    out += "null";
  } else if (value.is_bool()) {
    out += value.as_bool() ? "true" : "false";
  } else if (value.is_int()) {
    out += std::to_string(value.as_int());
  } else if (value.is_number()) {
    append_double(out, value.as_double());
  } else if (value.is_string()) {
    append_string(out, value.as_string());
  } else if (value.is_array()) {
    append_array(out, value.as_array(), indent, depth);
  } else {
    append_object(out, value.as_object(), indent, depth);
  }
}

[[noreturn]] void wrong_type(const char* expected, const Json& value) {
  fail<DataError>("json", "expected {}, got {}", expected, value.type_name());
}

}  // namespace

// Out of line: inlined moves of the variant draw false warnings, and every user compiles faster.
Json::Json() = default;
Json::Json(const Json& other) = default;
Json::Json(Json&& other) noexcept = default;
Json& Json::operator=(const Json& other) = default;
Json& Json::operator=(Json&& other) noexcept = default;
Json::~Json() = default;

Json Json::parse(std::string_view text, const std::string& where, int max_depth) {
  const std::size_t bad = find_invalid_utf8(text);
  require<DataError>(bad == std::string_view::npos, where.c_str(),
                     "expected UTF-8, got an invalid byte at position {}", bad);
  // The parser would take a NUL for the end of the text and ignore the rest.
  const std::size_t nul = text.find('\0');
  require<DataError>(nul == std::string_view::npos, where.c_str(),
                     "expected valid JSON, got a NUL at byte {}", nul);
  Builder builder(where, max_depth);
  const bool complete = nlohmann::json::sax_parse(text.begin(), text.end(), &builder);
  require<InternalError>(complete, where.c_str(),
                         "expected the JSON parser to finish or to throw, got neither");
  return builder.take();
}

std::string Json::dump(int indent) const {
  std::string out;
  append_value(out, *this, indent, 0);
  return out;
}

const char* Json::type_name() const {
  constexpr std::array<const char*, 7> kNames = {"null",   "boolean", "integer", "number",
                                                 "string", "array",   "object"};
  return kNames[value_.index()];
}

bool Json::as_bool() const {
  if (const bool* value = std::get_if<bool>(&value_)) return *value;
  wrong_type("boolean", *this);
}

std::int64_t Json::as_int() const {
  if (const std::int64_t* value = std::get_if<std::int64_t>(&value_)) return *value;
  wrong_type("integer", *this);
}

double Json::as_double() const {
  if (const double* value = std::get_if<double>(&value_)) return *value;
  if (const std::int64_t* value = std::get_if<std::int64_t>(&value_))
    return static_cast<double>(*value);
  wrong_type("number", *this);
}

const std::string& Json::as_string() const {
  if (const std::string* value = std::get_if<std::string>(&value_)) return *value;
  wrong_type("string", *this);
}

const Json::Array& Json::as_array() const {
  if (const Array* value = std::get_if<Array>(&value_)) return *value;
  wrong_type("array", *this);
}

Json::Array& Json::as_array() {
  if (Array* value = std::get_if<Array>(&value_)) return *value;
  wrong_type("array", *this);
}

const Json::Object& Json::as_object() const {
  if (const Object* value = std::get_if<Object>(&value_)) return *value;
  wrong_type("object", *this);
}

Json::Object& Json::as_object() {
  if (Object* value = std::get_if<Object>(&value_)) return *value;
  wrong_type("object", *this);
}

const Json* Json::find(std::string_view key) const {
  const Object* object = std::get_if<Object>(&value_);
  if (object == nullptr) return nullptr;
  for (const Member& member : *object) {
    if (member.first == key) return &member.second;
  }
  return nullptr;
}

const Json& Json::at(std::string_view key) const {
  if (!is_object()) wrong_type("object", *this);
  const Json* value = find(key);
  if (value == nullptr)
    fail<DataError>("json", "expected the key '{}', got an object without it", key);
  return *value;
}

Json& Json::operator[](std::string_view key) {
  Object& object = as_object();
  for (Member& member : object) {
    if (member.first == key) return member.second;
  }
  Member& added = object.emplace_back();
  added.first = key;
  return added.second;
}

std::size_t Json::size() const {
  if (const Array* array = std::get_if<Array>(&value_)) return array->size();
  if (const Object* object = std::get_if<Object>(&value_)) return object->size();
  return 0;
}

const Json& Json::at(std::size_t index) const {
  const Array& array = as_array();
  if (index >= array.size())
    fail<DataError>("json", "expected an index below {}, got {}", array.size(), index);
  return array[index];
}

void Json::push_back(Json value) { as_array().push_back(std::move(value)); }

}  // namespace qkv::inline v0
