// How many cores the control groups of Linux leave to a process.
#pragma once

#include <filesystem>
#include <string>

namespace qkv::inline v0 {

// The smallest quota, in cores, of a process's own group and its parents; 0 for none. `groups` is
// the text of /proc/self/cgroup, `root` the folder where groups are mounted. Version 2 (cpu.max),
// version 1 (cpu.cfs_quota_us) and both beside each other. What cannot be read limits nothing.
double cgroup_quota(const std::string& groups, const std::filesystem::path& root);

}  // namespace qkv::inline v0
