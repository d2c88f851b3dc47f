#include "bench/lock.h"

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/log.h"

namespace qkv::inline v0::bench {
namespace {

std::filesystem::path lock_path() {
  const char* folder = std::getenv("XDG_RUNTIME_DIR");
  return (folder != nullptr && *folder != '\0' ? std::filesystem::path(folder)
                                               : std::filesystem::temp_directory_path()) /
         fmt::format("qkv-bench-{}.lock", ::getuid());
}

bool same_file(int a, int b) {
  struct stat x {
  }, y{};
  return ::fstat(a, &x) == 0 && ::fstat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

// A file descriptor on the file `own` that a benchmark passed down, else -1.
int passed_down(int own) {
  const char* text = std::getenv("QKV_BENCH_LOCK_FD");
  if (text == nullptr) return -1;
  int fd = -1;
  const std::string_view digits(text);
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), fd);
  const bool number = error == std::errc() && end == digits.data() + digits.size();
  return number && same_file(fd, own) ? fd : -1;
}

// 0, or the error.
int lock(int fd, int how) {
  while (::flock(fd, LOCK_EX | how) != 0) {
    if (errno != EINTR) return errno;
  }
  return 0;
}

}  // namespace

BenchLock::BenchLock() {
  const std::filesystem::path path = lock_path();
  fd_ = ::open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0600);
  require<IoError>(fd_ >= 0, "bench", "expected to open the lock {}, got: {}", path.string(),
                   std::strerror(errno));
  if (const int fd = passed_down(fd_); fd >= 0) {
    ::close(fd_);
    fd_ = ::fcntl(fd, F_DUPFD_CLOEXEC, 0);  // the same open file, so the same lock
    require<IoError>(fd_ >= 0, "bench", "expected to use the lock {}, got: {}", path.string(),
                     std::strerror(errno));
  }
  int error = lock(fd_, LOCK_NB);
  if (error == EWOULDBLOCK) {
    log_message(LogLevel::kInfo, "another benchmark is running, waiting for it");
    error = lock(fd_, 0);
  }
  if (error != 0) {
    ::close(fd_);
    fail<IoError>("bench", "expected to lock {}, got: {}", path.string(), std::strerror(error));
  }
}

BenchLock::~BenchLock() { ::close(fd_); }

}  // namespace qkv::inline v0::bench
