// JSON values. Object keys keep their order; integers stay integers. Parsing is strict RFC 8259
// with a depth limit and refuses duplicate keys and invalid UTF-8; dumping writes the shortest text
// that reads back equal, and non-finite numbers as null.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "qkv/error.h"

namespace qkv::inline v0 {

class Json {
 public:
  using Array = std::vector<Json>;
  using Member = std::pair<std::string, Json>;
  using Object = std::vector<Member>;

  Json();  // null
  Json(const Json& other);
  Json(Json&& other) noexcept;
  Json& operator=(const Json& other);
  Json& operator=(Json&& other) noexcept;
  ~Json();
  Json(std::nullptr_t) : Json() {}
  Json(bool value) : value_(value) {}
  Json(int value) : value_(std::int64_t{value}) {}
  Json(std::int64_t value) : value_(value) {}
  Json(std::uint64_t value) : value_(static_cast<std::int64_t>(value)) {}
  Json(double value) : value_(value) {}
  Json(float value) : value_(static_cast<double>(value)) {}
  Json(const char* value) : value_(std::string(value)) {}
  Json(std::string value) : value_(std::move(value)) {}
  Json(std::string_view value) : value_(std::string(value)) {}
  Json(Array value) : value_(std::move(value)) {}
  Json(Object value) : value_(std::move(value)) {}
  static Json array() { return Json(Array{}); }
  static Json object() { return Json(Object{}); }

  // DataError with byte position for bad input. `where` names the source in messages.
  static Json parse(std::string_view text, const std::string& where = "json", int max_depth = 256);
  std::string dump(int indent = -1) const;  // indent < 0: one line

  bool is_null() const { return value_.index() == 0; }
  bool is_bool() const { return std::holds_alternative<bool>(value_); }
  bool is_int() const { return std::holds_alternative<std::int64_t>(value_); }
  bool is_number() const { return is_int() || std::holds_alternative<double>(value_); }
  bool is_string() const { return std::holds_alternative<std::string>(value_); }
  bool is_array() const { return std::holds_alternative<Array>(value_); }
  bool is_object() const { return std::holds_alternative<Object>(value_); }
  const char* type_name() const;

  // Typed access; DataError naming the type that came.
  bool as_bool() const;
  std::int64_t as_int() const;  // integers only
  double as_double() const;
  const std::string& as_string() const;
  const Array& as_array() const;
  Array& as_array();
  const Object& as_object() const;
  Object& as_object();

  // Objects. find: null pointer if absent (or not an object). at: DataError if absent. [] inserts
  // null.
  const Json* find(std::string_view key) const;
  bool contains(std::string_view key) const { return find(key) != nullptr; }
  const Json& at(std::string_view key) const;
  Json& operator[](std::string_view key);
  // Arrays.
  std::size_t size() const;  // of an array or object, else 0
  const Json& at(std::size_t index) const;
  void push_back(Json value);

  bool operator==(const Json& other) const = default;

 private:
  std::variant<std::monostate, bool, std::int64_t, double, std::string, Array, Object> value_;
};

// Position of the first byte that is not part of valid UTF-8 (surrogates and > U+10FFFF are not),
// or npos.
std::size_t find_invalid_utf8(std::string_view text);

}  // namespace qkv::inline v0
