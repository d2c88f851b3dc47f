#include "terminal.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include "base/check.h"

namespace qkv::inline v0 {
namespace {

std::atomic<int> g_signal{0};
std::mutex g_stderr_mutex;
std::size_t g_progress_width = 0;  // columns of the progress line on show

extern "C" void on_signal(int signal) {
  g_signal.store(signal);
  std::signal(signal, SIG_DFL);
}

bool colour() {
  const char* no_color = std::getenv("NO_COLOR");
  return stderr_is_terminal() && (no_color == nullptr || *no_color == '\0');
}

// Characters, not bytes, of UTF-8 text.
std::size_t columns(std::string_view text) {
  std::size_t n = 0;
  for (const char c : text) n += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return n;
}

void erase_progress() {
  if (g_progress_width == 0) return;
  std::fprintf(stderr, "\r%*s\r", static_cast<int>(g_progress_width), "");
  g_progress_width = 0;
}

}  // namespace

void make_folder(const std::filesystem::path& folder, const char* where) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  require<IoError>(!error, where, "expected a folder that can be made at {}, got: {}",
                   folder.string(), error.message());
}

void print_text(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0)
    return;
  if (errno == EPIPE) throw OutputClosed{};
  fail<IoError>("stdout", "cannot write the output: {}", std::strerror(errno));
}

void print_line(std::string_view line) { print_text(std::string(line) + '\n'); }

void print_json(const Json& value) { print_line(value.dump()); }

void hold_closed_streams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (::fcntl(fd, F_GETFD) != -1 || errno != EBADF) continue;
    // The wrong direction: reading or writing still fails, as on a closed stream. The lowest free
    // descriptor is this one.
    if (::open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) != fd) return;
  }
}

bool stderr_is_terminal() { return isatty(STDERR_FILENO) == 1; }

void set_up_messages(int verbosity) {
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // a file at its limit is an error of write(), as a full disk is
  set_log_sink([verbosity, color = colour()](LogLevel level, const std::string& message) {
    if (level == LogLevel::kDebug && verbosity < 1) return;
    if (level == LogLevel::kInfo && verbosity < 0) return;
    const char* label = level == LogLevel::kError     ? "error: "
                        : level == LogLevel::kWarning ? "warning: "
                                                      : "";
    const char* start = !color || *label == '\0'    ? ""
                        : level == LogLevel::kError ? "\033[31m"
                                                    : "\033[33m";
    const char* stop = *start == '\0' ? "" : "\033[0m";
    const std::lock_guard lock(g_stderr_mutex);
    erase_progress();
    std::fprintf(stderr, "%s%s%s%s\n", start, label, stop, message.c_str());
  });
}

constexpr char kBracketMark = '\x01';

std::string mark_brackets(std::string argument) {
  const bool like_list = argument.starts_with('[') && argument.ends_with(']');
  if (like_list || argument.starts_with(kBracketMark)) argument.insert(0, 1, kBracketMark);
  return argument;
}

std::string unmark_brackets(std::string argument) {
  if (argument.starts_with(kBracketMark)) argument.erase(0, 1);
  return argument;
}

ItemReader::ItemReader(std::vector<std::string> arguments, std::string_view verb)
    : arguments_(std::move(arguments)) {
  if (!arguments_.empty()) return;
  require<ArgumentError>(
      isatty(STDIN_FILENO) == 0, "arguments",
      "expected text for {}; give it as an argument, or one item a line on stdin", verb);
  arguments_.emplace_back("-");
}

bool ItemReader::next(std::string& item) {
  while (index_ < arguments_.size()) {
    reading_stdin_ = arguments_[index_] == "-";
    if (!reading_stdin_) {
      item = unmark_brackets(arguments_[index_++]);
      return true;
    }
    if (next_line(item)) return true;
    ++index_;
  }
  return false;
}

bool ItemReader::next_line(std::string& line) {
  std::size_t end = buffer_.find('\n', at_);
  while (end == std::string::npos && !ended_) {
    const std::size_t seen = buffer_.size() - at_;
    fill();
    end = buffer_.find('\n', at_ + seen);
  }
  if (at_ == buffer_.size()) return false;
  end = std::min(end, buffer_.size());
  line.assign(buffer_, at_, end - at_);
  at_ = std::min(end + 1, buffer_.size());
  if (line.ends_with('\r')) line.pop_back();
  ++line_;
  return true;
}

std::int64_t ItemReader::number() const {
  return reading_stdin_ ? line_ : static_cast<std::int64_t>(index_);
}

bool ItemReader::waiting() {
  if (!reading_stdin_) return index_ < arguments_.size() && arguments_[index_] != "-";
  pollfd input{STDIN_FILENO, POLLIN, 0};
  if (buffer_.find('\n', at_) == std::string::npos && !ended_ && ::poll(&input, 1, 0) > 0) fill();
  return buffer_.find('\n', at_) != std::string::npos || (ended_ && at_ < buffer_.size());
}

void ItemReader::fill() {
  constexpr std::size_t kBlock = 1 << 16;
  buffer_.erase(0, at_);
  at_ = 0;
  const std::size_t kept = buffer_.size();
  buffer_.resize(kept + kBlock);
  ssize_t got = 0;
  do {
    got = ::read(STDIN_FILENO, buffer_.data() + kept, kBlock);
  } while (got < 0 && errno == EINTR);
  require<IoError>(got >= 0, "stdin", "expected to read line {}, got: {}", line_ + 1,
                   std::strerror(errno));
  buffer_.resize(kept + static_cast<std::size_t>(got));
  ended_ = got == 0;
}

ProgressLine::ProgressLine(int verbosity) : active_(verbosity >= 0 && stderr_is_terminal()) {}

ProgressLine::~ProgressLine() { clear(); }

bool ProgressLine::due() const {
  return active_ && std::chrono::steady_clock::now() - last_ >= std::chrono::milliseconds(100);
}

void ProgressLine::update(std::string_view text) {
  if (!due()) return;
  last_ = std::chrono::steady_clock::now();
  const std::lock_guard lock(g_stderr_mutex);
  erase_progress();
  std::fprintf(stderr, "%.*s", static_cast<int>(text.size()), text.data());
  std::fflush(stderr);
  g_progress_width = columns(text);
}

void ProgressLine::clear() {
  if (!active_) return;
  const std::lock_guard lock(g_stderr_mutex);
  erase_progress();
  std::fflush(stderr);
}

void note_signals() {
  std::signal(SIGINT, on_signal);
  std::signal(SIGTERM, on_signal);
}

int noted_signal() { return g_signal.load(); }

}  // namespace qkv::inline v0
