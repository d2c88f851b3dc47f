#include "support/files.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <stdexcept>

#include <unistd.h>

namespace qkv::testing {
namespace fs = std::filesystem;

TempFolder::TempFolder() {
  std::string pattern = (fs::temp_directory_path() / "qkv-test-XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary folder");
  path_ = pattern;
}

TempFolder::~TempFolder() {
  std::error_code code;
  fs::remove_all(path_, code);
}

fs::path TempFolder::write(const std::string& name, std::string_view bytes) const {
  fs::path path = path_ / name;
  std::ofstream(path, std::ios::binary)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return path;
}

std::vector<std::string> list_folder(const fs::path& folder) {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

std::optional<fs::path> shared_path(const std::string& relative) {
  const char* given = std::getenv("QKV_SHARED");
  fs::path path =
      (given != nullptr ? fs::path(given) : fs::path(QKV_SOURCE_DIR) / ".." / "shared") / relative;
  if (!fs::exists(path)) return std::nullopt;
  return path;
}

}  // namespace qkv::testing
