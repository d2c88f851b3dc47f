#include "base/file.h"

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/path.h"

namespace qkv::inline v0 {
namespace fs = std::filesystem;
namespace {

[[noreturn]] void io_fail(const char* action, const fs::path& path, int error) {
  fail<IoError>("file", "expected to {} '{}', got: {}", action, path.string(),
                std::generic_category().message(error));
}

class Descriptor {
 public:
  Descriptor(const fs::path& path, int flags, mode_t mode = 0) {
    do {
      fd_ = ::open(path.c_str(), flags | O_CLOEXEC, mode);
    } while (fd_ < 0 && errno == EINTR);
  }
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

fs::path folder_of(const fs::path& path) {
  const fs::path parent = path.parent_path();
  return parent.empty() ? fs::path(".") : parent;
}

// A name that no other writer of this machine uses now; short, so that a long file name stays
// within the limit.
fs::path temporary_beside(const fs::path& path) {
  static std::atomic<unsigned> counter{0};
  return folder_of(path) / fmt::format(".qkv-{}-{}.tmp", ::getpid(), counter.fetch_add(1));
}

void sync_descriptor(int fd, const fs::path& path) {
  // EINVAL and EROFS: a file system or device that has nothing to sync.
  if (::fsync(fd) != 0 && errno != EINVAL && errno != EROFS) io_fail("sync", path, errno);
}

}  // namespace

std::string read_file(const fs::path& path) {
  const Descriptor file(path, O_RDONLY);
  if (file.get() < 0) io_fail("read", path, errno);
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) io_fail("read", path, errno);
  std::string bytes;
  std::size_t used = 0;
  // One byte more than the size, so that the end shows in one read; pipes and /proc report 0.
  bytes.resize(static_cast<std::size_t>(info.st_size) + 1);
  for (;;) {
    const ssize_t got = ::read(file.get(), bytes.data() + used, bytes.size() - used);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) io_fail("read", path, errno);
    if (got == 0) break;
    used += static_cast<std::size_t>(got);
    if (used == bytes.size()) bytes.resize(bytes.size() * 2 + 4096);
  }
  bytes.resize(used);
  return bytes;
}

void write_file_atomic(const fs::path& path, std::string_view bytes) {
  AtomicFile file(path);
  file.write(bytes.data(), bytes.size());
  file.commit();
}

void sync_folder(const fs::path& folder) {
  const Descriptor descriptor(folder, O_RDONLY | O_DIRECTORY);
  if (descriptor.get() < 0) io_fail("open the folder", folder, errno);
  sync_descriptor(descriptor.get(), folder);
}

void replace_path(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) == 0) {
    sync_folder(folder_of(to));
    return;
  }
  const int error = errno;
  if ((error != ENOTEMPTY && error != EEXIST) || !is_folder(to)) io_fail("replace", to, error);
  // A folder with contents: swap both names at once, then drop the old one.
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) {
    sync_folder(folder_of(to));
    std::error_code code;
    fs::remove_all(from, code);
    if (code) io_fail("remove the replaced folder", from, code.value());
    return;
  }
  if (errno != EINVAL && errno != ENOSYS) io_fail("replace", to, errno);
  // A file system that cannot swap: the old folder keeps its data under another name until the new
  // one stands.
  const fs::path old = temporary_beside(to);
  if (::rename(to.c_str(), old.c_str()) != 0) io_fail("replace", to, errno);
  if (::rename(from.c_str(), to.c_str()) != 0) {
    const int second = errno;
    if (::rename(old.c_str(), to.c_str()) != 0)
      io_fail("bring back the old folder, now at", old, errno);
    io_fail("replace", to, second);
  }
  sync_folder(folder_of(to));
  std::error_code code;
  fs::remove_all(old, code);
  if (code) io_fail("remove the replaced folder", old, code.value());
}

AtomicFile::AtomicFile(const fs::path& path) : path_(path) {
  std::error_code code;
  if (fs::is_symlink(path_, code))
    path_ = fs::weakly_canonical(path_);  // the target is replaced, not the link
  struct stat old {};
  const bool exists = ::stat(path_.c_str(), &old) == 0;
  if (exists && S_ISDIR(old.st_mode)) io_fail("write", path_, EISDIR);
  if (exists && !S_ISREG(old.st_mode)) {  // a device or pipe is written in place
    Descriptor device(path_, O_WRONLY);
    if (device.get() < 0) io_fail("write", path_, errno);
    fd_ = device.release();
    return;
  }
  temporary_ = temporary_beside(path_);
  Descriptor file(temporary_, O_WRONLY | O_CREAT | O_EXCL, 0666);
  if (file.get() < 0 && errno == EEXIST) {  // left behind by a killed process that had our number
    ::unlink(temporary_.c_str());
    Descriptor again(temporary_, O_WRONLY | O_CREAT | O_EXCL, 0666);
    if (again.get() < 0) io_fail("write", path_, errno);
    fd_ = again.release();
  } else {
    if (file.get() < 0) io_fail("write", path_, errno);
    fd_ = file.release();
  }
  if (exists) (void)::fchmod(fd_, old.st_mode & 07777);  // best effort: the old file's mode
}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::write(const void* data, std::size_t bytes) {
  require<InternalError>(fd_ >= 0, "file",
                         "expected an open file, got a write to '{}' after commit", path_.string());
  const char* p = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t put = ::write(fd_, p, bytes);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) io_fail("write", path_, errno);
    p += put;
    bytes -= static_cast<std::size_t>(put);
  }
}

void AtomicFile::commit() {
  require<InternalError>(fd_ >= 0, "file", "expected an open file, got a second commit of '{}'",
                         path_.string());
  sync_descriptor(fd_, path_);
  const int closed = ::close(std::exchange(fd_, -1));
  if (closed != 0) io_fail("write", path_, errno);
  if (temporary_.empty()) return;
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) io_fail("write", path_, errno);
  temporary_.clear();
  sync_folder(folder_of(path_));
}

std::shared_ptr<const MappedFile> MappedFile::open(const fs::path& path) {
  const Descriptor file(path, O_RDONLY);
  if (file.get() < 0) io_fail("read", path, errno);
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) io_fail("read", path, errno);
  if (S_ISDIR(info.st_mode)) io_fail("read", path, EISDIR);
  require<IoError>(S_ISREG(info.st_mode), "file",
                   "expected '{}' to be a regular file, got a device or pipe", path.string());
  std::shared_ptr<MappedFile> mapped(new MappedFile);
  if (info.st_size == 0) return mapped;
  const auto size = static_cast<std::size_t>(info.st_size);
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (data == MAP_FAILED) io_fail("map", path, errno);
  mapped->data_ = static_cast<const std::byte*>(data);
  mapped->size_ = size;
  return mapped;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace qkv::inline v0
