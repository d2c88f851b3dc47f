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

namespace {

// `relative` in the folder that the environment names, else in `usual`.
std::optional<fs::path> find_in(const char* variable, const fs::path& usual,
                                const std::string& relative) {
  const char* given = std::getenv(variable);
  fs::path path = (given != nullptr ? fs::path(given) : usual) / relative;
  if (!fs::exists(path)) return std::nullopt;
  return path;
}

}  // namespace

std::optional<fs::path> shared_path(const std::string& relative) {
  return find_in("QKV_SHARED", fs::path(QKV_SOURCE_DIR) / ".." / "shared", relative);
}

std::optional<fs::path> real_model_path(const std::string& relative) {
  return find_in("QKV_REAL_MODELS", fs::path(QKV_SOURCE_DIR) / "build" / "real_models", relative);
}

}  // namespace qkv::testing
