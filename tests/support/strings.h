// Words and cells of text in tests.
#pragma once

#include <string>

namespace qkv::testing {

inline bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// A field of a CSV table, quoted.
inline std::string csv_field(const std::string& field) {
  std::string out = "\"";
  for (const char c : field) out += c == '"' ? "\"\"" : std::string(1, c);
  return out + "\"";
}

}  // namespace qkv::testing
