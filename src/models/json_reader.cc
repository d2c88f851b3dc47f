#include "models/json_reader.h"

#include "base/file.h"

namespace qkv::inline v0 {

Json read_json_file(const std::filesystem::path& path) {
  const std::string name = path.string();
  try {
    return Json::parse(read_file(path), name);
  } catch (const DataError& error) {
    fail<ModelError>(name.c_str(), "{}", error_reason(error));
  }
}

}  // namespace qkv::inline v0
