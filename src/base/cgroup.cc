#include "base/cgroup.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string_view>
#include <vector>

#include "base/thread_pool.h"

namespace qkv::inline v0 {
namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string text;
  std::getline(file, text);
  return text;
}

// Of one group: a file of version 2, or the pair of version 1 (-1 is unlimited).
double quota_of(const std::string& group) {
  const std::string max = first_line(group + "/cpu.max");
  if (!max.empty()) return parse_cpu_max(max.c_str());
  const std::string quota = first_line(group + "/cpu.cfs_quota_us"),
                    period = first_line(group + "/cpu.cfs_period_us");
  return parse_cpu_max((quota + " " + period).c_str());
}

// Whether "cpu,cpuacct" names the controller of the time.
bool has_cpu(std::string_view controllers) {
  for (std::size_t begin = 0; begin <= controllers.size();) {
    const std::size_t end = std::min(controllers.find(',', begin), controllers.size());
    if (controllers.substr(begin, end - begin) == "cpu") return true;
    begin = end + 1;
  }
  return false;
}

}  // namespace

double cgroup_quota(const std::string& groups, const std::filesystem::path& root) {
  double quota = 0;
  std::istringstream lines(groups);
  for (std::string line; std::getline(lines, line);) {  // NUMBER:CONTROLLERS:GROUP
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::vector<std::filesystem::path> mounts;
    if (controllers.empty()) mounts = {root, root / "unified"};
    if (has_cpu(controllers)) mounts = {root / "cpu", root / controllers};
    for (const std::filesystem::path& mount : mounts) {
      std::string group = line.substr(second + 1);
      for (;;) {  // up to the mount itself, which is all that a container sees of its group
        if (group == "/") group.clear();
        const double value = quota_of(mount.string() + group);
        if (value > 0 && (quota == 0 || value < quota)) quota = value;
        const std::size_t parent = group.find_last_of('/');
        if (parent == std::string::npos) break;
        group.resize(parent);
      }
    }
  }
  return quota;
}

}  // namespace qkv::inline v0
