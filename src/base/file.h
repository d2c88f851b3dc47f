// Files: whole reads, memory maps, atomic writes. Errors are IoError with the path and the system's
// reason.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

namespace qkv::inline v0 {

std::string read_file(const std::filesystem::path& path);

// Writes to a temporary beside `path`, fsyncs, renames, fsyncs the folder. On failure nothing is
// left behind and the old file stands.
void write_file_atomic(const std::filesystem::path& path, std::string_view bytes);

// Renames `from` (file or folder) to `to` and makes it durable; an existing folder `to` is
// replaced.
void replace_path(const std::filesystem::path& from, const std::filesystem::path& to);
void sync_folder(const std::filesystem::path& folder);

// A file being written aside; commit() makes it appear under its name. Without commit it is
// removed.
class AtomicFile {
 public:
  explicit AtomicFile(const std::filesystem::path& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  void write(const void* data, std::size_t bytes);
  void commit();

 private:
  std::filesystem::path path_, temporary_;
  int fd_ = -1;
};

// Read-only map of a whole file. Empty files give size 0.
class MappedFile {
 public:
  static std::shared_ptr<const MappedFile> open(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  const std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  MappedFile() = default;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace qkv::inline v0
