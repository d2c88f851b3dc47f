// Questions about paths that never throw: what cannot be looked at, such as a name that is too
// long, is not there.
#pragma once

#include <filesystem>
#include <system_error>

namespace qkv::inline v0 {

inline bool path_exists(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

inline bool is_folder(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::is_directory(path, error);
}

}  // namespace qkv::inline v0
