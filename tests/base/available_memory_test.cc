#include "base/available_memory.h"

#include <gtest/gtest.h>

#include "base/file.h"
#include "support/files.h"

namespace {
using namespace qkv;
using qkv::testing::TempFolder;
constexpr const char* kMeminfo = "MemTotal:  8000 kB\nMemAvailable:    4000 kB\nMemFree: 1 kB\n";
constexpr std::uint64_t kMachine = 4000 * 1024;

TEST(AvailableMemory, the_machine_alone) {
  const TempFolder root;
  EXPECT_EQ(available_memory(kMeminfo, "", root.path()), kMachine);
  EXPECT_EQ(available_memory("", "", root.path()), UINT64_MAX);
  EXPECT_EQ(available_memory("MemAvailable: none\n", "0::/\n", root.path()), UINT64_MAX);
  EXPECT_GT(available_memory(), 0u);
}

TEST(AvailableMemory, control_groups_and_their_parents_limit_it) {
  const TempFolder root;
  std::filesystem::create_directories(root / "a" / "b");
  const auto write = [&](const std::string& name, const std::string& text) {
    write_file_atomic(root.path() / name, text);
  };
  write("a/b/memory.max", "max\n");
  write("a/b/memory.current", "5\n");
  EXPECT_EQ(available_memory(kMeminfo, "0::/a/b\n", root.path()), kMachine);
  write("a/memory.max", "1000000\n");
  write("a/memory.current", "400000\n");
  EXPECT_EQ(available_memory(kMeminfo, "0::/a/b\n", root.path()), 600000u);
  write("a/memory.stat", "anon 1\nfile_mapped 7\nfile 300000\n");  // caches are given back
  EXPECT_EQ(available_memory(kMeminfo, "0::/a/b\n", root.path()), 900000u);
  write("a/memory.current", "2000000\n");
  EXPECT_EQ(available_memory(kMeminfo, "0::/a/b\n", root.path()), 0u);
}

TEST(AvailableMemory, groups_of_version_1) {
  const TempFolder root;
  std::filesystem::create_directories(root / "memory" / "x");
  write_file_atomic(root.path() / "memory/x/memory.limit_in_bytes", "1000\n");
  write_file_atomic(root.path() / "memory/x/memory.usage_in_bytes", "400\n");
  EXPECT_EQ(available_memory(kMeminfo, "4:memory:/x\n3:cpu:/\n", root.path()), 600u);
}

}  // namespace
