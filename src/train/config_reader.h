// Typed reading of a configuration that collects every fault instead of stopping at the first.
#pragma once

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "train/toml.h"

namespace qkv::inline v0::train {

// A key becomes known by being asked for, so the list of keys stands in one place only: where they
// are read.
class ConfigReader {
 public:
  // Paths of the file are relative to `folder`; those of the command line to the working folder,
  // or, if there is nothing there, to `folder` too.
  ConfigReader(const TomlDocument& document, std::filesystem::path folder)
      : document_(document), folder_(std::move(folder)) {}

  bool has(std::string_view key) const;
  // Each leaves `out` as it is when the key is absent or its value is a fault.
  void integer(const std::string& key, std::int64_t& out, std::int64_t min, std::int64_t max);
  void number(const std::string& key, double& out, double min, double max);
  void boolean(const std::string& key, bool& out);
  void text(const std::string& key, std::string& out);
  void texts(const std::string& key, std::vector<std::string>& out);
  void numbers(const std::string& key, std::vector<double>& out, std::size_t count, double min,
               double max);
  void path(const std::string& key, std::filesystem::path& out);
  // One of `known`. A value of `later` is a fault that says so: the word is right, the feature is
  // not in this version.
  void choice(const std::string& key, std::string& out, std::initializer_list<const char*> known,
              std::initializer_list<const char*> later = {});
  // A key that exists but has no meaning here: any value is a fault with this reason.
  void refuse(const std::string& key, const std::string& reason);

  void fault(const std::string& key, const std::string& message);
  // Adds one fault per key that nobody asked for, naming the nearest known one.
  void check_unknown();
  const std::vector<std::string>& faults() const { return faults_; }

 private:
  const Json* find(const std::string& key);
  bool typed(const std::string& key, const Json* value, bool fits, const char* expected);
  void check_table(const Json& table, const std::string& prefix);
  std::string suggestion(const std::string& key) const;

  const TomlDocument& document_;
  std::filesystem::path folder_;
  std::vector<std::string> known_;
  std::vector<std::string> faults_;
};

}  // namespace qkv::inline v0::train
