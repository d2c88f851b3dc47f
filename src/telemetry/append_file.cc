#include "telemetry/append_file.h"

#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <unistd.h>

#include "base/check.h"

namespace qkv::inline v0::telemetry {
namespace {

void require_ok(bool ok, const char* what, const std::filesystem::path& path) {
  if (!ok) fail<IoError>("file", "cannot {} {}: {}", what, path.string(), std::strerror(errno));
}

}  // namespace

AppendFile::AppendFile(std::filesystem::path path, std::int64_t keep) : path_(std::move(path)) {
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  require_ok(fd_ >= 0, "open", path_);
  size_ = ::lseek(fd_, 0, SEEK_END);
  if (size_ > keep && ::ftruncate(fd_, keep) == 0) size_ = ::lseek(fd_, 0, SEEK_END);
  if (size_ >= 0 && size_ <= keep) return;
  const int reason = errno;
  ::close(fd_);
  errno = reason;
  require_ok(false, "cut", path_);
}

AppendFile::~AppendFile() { ::close(fd_); }

void AppendFile::append(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    require_ok(written >= 0, "write", path_);
    size_ += written;
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
}

void AppendFile::sync() { require_ok(::fdatasync(fd_) == 0, "sync", path_); }

}  // namespace qkv::inline v0::telemetry
