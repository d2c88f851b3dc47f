// Folders and files of tests.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

namespace qkv::testing {

// A new empty folder, removed with its contents at the end of the scope.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  // Writes a file and returns its path.
  std::filesystem::path write(const std::string& name, std::string_view bytes) const;

 private:
  std::filesystem::path path_;
};

// Names in a folder, sorted.
std::vector<std::string> list_folder(const std::filesystem::path& folder);

// A file or folder of the data that lies outside the repository ($QKV_SHARED, else ../shared beside
// the repository); nothing if absent.
std::optional<std::filesystem::path> shared_path(const std::string& relative);

// A file or folder of the published models ($QKV_REAL_MODELS, else build/real_models, where
// ./dev test puts them); nothing if absent.
std::optional<std::filesystem::path> real_model_path(const std::string& relative);

}  // namespace qkv::testing

// Sets `name` to the path or skips the test with a clear word.
#define QKV_SHARED_OR_SKIP(name, relative)                                                       \
  const auto name##_found = ::qkv::testing::shared_path(relative);                               \
  if (!name##_found) GTEST_SKIP() << "needs " << relative << " of the shared data (QKV_SHARED)"; \
  const std::filesystem::path& name = *name##_found

#define QKV_REAL_MODEL_OR_SKIP(name, relative)                                          \
  const auto name##_found = ::qkv::testing::real_model_path(relative);                  \
  if (!name##_found) GTEST_SKIP() << "needs " << relative << " from PyPI (./dev test)"; \
  const std::filesystem::path& name = *name##_found
