// How much memory a process may still take, and the refusal of what needs more.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace qkv::inline v0 {

// Bytes that this process may still take: MemAvailable of the machine, or less where a control
// group limits it. The largest number where that cannot be read.
std::uint64_t available_memory();

// The same from given texts: /proc/meminfo, /proc/self/cgroup, and the folder where control groups
// are mounted. Memory of a group that only caches files counts as free, for it is given back.
std::uint64_t available_memory(const std::string& meminfo, const std::string& groups,
                               const std::filesystem::path& root);

// ModelError, with both figures, if `bytes` more than what the process has now do not fit into
// `available`: said before loading. `what` needs it: "the weights of 'model.gguf'".
void require_memory(std::uint64_t bytes, std::uint64_t available, const std::string& what);
inline void require_memory(std::uint64_t bytes, const std::string& what) {
  require_memory(bytes, available_memory(), what);
}

}  // namespace qkv::inline v0
