#include "base/available_memory.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <string_view>

#include "base/check.h"

namespace qkv::inline v0 {
namespace {

constexpr std::uint64_t kUnknown = UINT64_MAX;

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// The number behind `key` in lines of "key number", e.g. "MemAvailable:    100 kB".
std::optional<std::uint64_t> number_behind(std::string_view text, std::string_view key) {
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = text.substr(at, end - at);
    at = end + 1;
    if (!line.starts_with(key)) continue;
    line.remove_prefix(key.size());
    const std::size_t digit = line.find_first_of("0123456789");
    if (digit == std::string_view::npos || line.find_first_not_of(" \t") != digit) continue;
    std::uint64_t value = 0;
    const auto [stop, error] =
        std::from_chars(line.data() + digit, line.data() + line.size(), value);
    if (error == std::errc() && stop != line.data() + digit) return value;
  }
  return std::nullopt;
}

struct GroupFiles {
  const char *limit, *used, *cache;  // the last: the key in memory.stat
};
constexpr GroupFiles kVersion2 = {"memory.max", "memory.current", "file "};
constexpr GroupFiles kVersion1 = {"memory.limit_in_bytes", "memory.usage_in_bytes", "cache "};

// What one group leaves; kUnknown without a limit ("max", or a file that is not there).
std::uint64_t left_in(const std::filesystem::path& group, const GroupFiles& files) {
  const auto limit = number_behind(text_of(group / files.limit), "");
  const auto used = number_behind(text_of(group / files.used), "");
  if (!limit || !used) return kUnknown;
  const std::uint64_t cached =
      std::min(number_behind(text_of(group / "memory.stat"), files.cache).value_or(0), *used);
  const std::uint64_t kept = *used - cached;
  return *limit > kept ? *limit - kept : 0;
}

// A group and all above it, up to the mount, which is all that a container sees.
std::uint64_t left_below(const std::filesystem::path& mount, std::string group,
                         const GroupFiles& files) {
  std::uint64_t left = kUnknown;
  for (;;) {
    if (group == "/") group.clear();
    left = std::min(left, left_in(mount.string() + group, files));
    const std::size_t parent = group.find_last_of('/');
    if (parent == std::string::npos) return left;
    group.resize(parent);
  }
}

std::string size_text(std::uint64_t bytes) {
  constexpr double kMegabyte = 1e6, kGigabyte = 1e9;
  const auto value = static_cast<double>(bytes);
  return value < kGigabyte ? fmt::format("{:.1f} MB", value / kMegabyte)
                           : fmt::format("{:.1f} GB", value / kGigabyte);
}

}  // namespace

std::uint64_t available_memory(const std::string& meminfo, const std::string& groups,
                               const std::filesystem::path& root) {
  constexpr std::uint64_t kKilobyte = 1024;
  const auto machine = number_behind(meminfo, "MemAvailable:");
  std::uint64_t left = machine && *machine < kUnknown / kKilobyte ? *machine * kKilobyte : kUnknown;
  std::istringstream lines(groups);
  for (std::string line; std::getline(lines, line);) {  // NUMBER:CONTROLLERS:GROUP
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string group = line.substr(second + 1);
    if (controllers.empty()) {
      left = std::min(left, left_below(root, group, kVersion2));
      left = std::min(left, left_below(root / "unified", group, kVersion2));
    } else if (controllers == "memory") {
      left = std::min(left, left_below(root / "memory", group, kVersion1));
    }
  }
  return left;
}

std::uint64_t available_memory() {
  return available_memory(text_of("/proc/meminfo"), text_of("/proc/self/cgroup"), "/sys/fs/cgroup");
}

void require_memory(std::uint64_t bytes, std::uint64_t available, const std::string& what) {
  require<ModelError>(bytes <= available, "memory",
                      "expected {} to fit into the memory that is free, got a need of {} and {} "
                      "free; use a smaller or quantised model, or a machine with more memory",
                      what, size_text(bytes), size_text(available));
}

}  // namespace qkv::inline v0
