// A file that only grows: every append is in the hands of the system when it returns.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

namespace qkv::inline v0::telemetry {

// Not thread-safe. Errors are IoError with the path and the system's reason.
class AppendFile {
 public:
  // Creates the file if need be and cuts it to `keep` bytes; a file that is shorter stays as it is.
  AppendFile(std::filesystem::path path, std::int64_t keep);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;
  void append(std::string_view bytes);
  void sync();  // to the disk
  std::int64_t size() const { return size_; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  int fd_ = -1;
  std::int64_t size_ = 0;
};

}  // namespace qkv::inline v0::telemetry
