#include "base/file.h"

#include <csignal>
#include <fstream>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "qkv/error.h"

#include "support/files.h"

namespace {
using namespace qkv;
using qkv::testing::list_folder;
using qkv::testing::TempFolder;
namespace fs = std::filesystem;

using Names = std::vector<std::string>;

TEST(File, reads_what_was_written) {
  const TempFolder folder;
  for (const std::string& name :
       {std::string("a"), std::string("a name with blanks"), std::string("我的文件")}) {
    const std::string bytes = std::string("x\0y\xFF", 4) + name;
    write_file_atomic(folder / name, bytes);
    EXPECT_EQ(read_file(folder / name), bytes);
  }
  EXPECT_EQ(list_folder(folder.path()).size(), 3u);
}

TEST(File, reads_empty_and_large_files_and_proc) {
  const TempFolder folder;
  write_file_atomic(folder / "empty", "");
  EXPECT_EQ(read_file(folder / "empty"), "");
  const std::string large(3 << 20, 'q');
  write_file_atomic(folder / "large", large);
  EXPECT_EQ(read_file(folder / "large"), large);
  EXPECT_FALSE(read_file("/proc/self/status").empty());
}

TEST(File, errors_name_path_and_reason) {
  const TempFolder folder;
  try {
    read_file(folder / "absent");
    FAIL();
  } catch (const IoError& error) {
    EXPECT_NE(std::string(error.what()).find("absent"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("No such file"), std::string::npos);
  }
  EXPECT_THROW(read_file(folder.path()), IoError);
  EXPECT_THROW(write_file_atomic(folder.path(), "x"), IoError);
  EXPECT_THROW(write_file_atomic(folder / "no/such/folder", "x"), IoError);
  EXPECT_THROW(MappedFile::open(folder.path()), IoError);
  EXPECT_THROW(MappedFile::open(folder / "absent"), IoError);
  EXPECT_TRUE(list_folder(folder.path()).empty());
}

TEST(File, a_long_name_can_be_written) {
  const TempFolder folder;
  const std::string name(255, 'n');
  write_file_atomic(folder / name, "x");
  EXPECT_EQ(read_file(folder / name), "x");
}

TEST(File, without_commit_nothing_remains) {
  const TempFolder folder;
  folder.write("a", "old");
  {
    AtomicFile file(folder / "a");
    file.write("new", 3);
    EXPECT_EQ(read_file(folder / "a"), "old");
  }
  EXPECT_EQ(read_file(folder / "a"), "old");
  EXPECT_EQ(list_folder(folder.path()), Names{"a"});
}

TEST(File, keeps_the_mode_and_the_link) {
  const TempFolder folder;
  const fs::path target = folder.write("target", "old");
  ASSERT_EQ(::chmod(target.c_str(), 0640), 0);
  fs::create_symlink("target", folder / "link");
  write_file_atomic(folder / "link", "new");
  EXPECT_TRUE(fs::is_symlink(folder / "link"));
  EXPECT_EQ(read_file(target), "new");
  EXPECT_EQ(fs::status(target).permissions(), static_cast<fs::perms>(0640));
}

TEST(File, writes_into_devices_in_place) {
  write_file_atomic("/dev/null", "x");
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

TEST(File, replaces_files_and_folders) {
  const TempFolder folder;
  folder.write("a", "new");
  folder.write("b", "old");
  replace_path(folder / "a", folder / "b");
  EXPECT_EQ(read_file(folder / "b"), "new");
  fs::create_directory(folder / "from");
  folder.write("from/x", "1");
  fs::create_directory(folder / "to");
  folder.write("to/y", "2");
  replace_path(folder / "from", folder / "to");
  EXPECT_EQ(list_folder(folder / "to"), Names{"x"});
  EXPECT_EQ(list_folder(folder.path()), (Names{"b", "to"}));
  EXPECT_THROW(replace_path(folder / "absent", folder / "to"), IoError);
  EXPECT_THROW(replace_path(folder / "b", folder / "to"),
               IoError);  // a file does not replace a folder
  EXPECT_EQ(list_folder(folder / "to"), Names{"x"});
}

// Runs `body` in a child process; its exit status is returned.
template <class F>
int in_child(F body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST(File, b64_a_full_disk_leaves_the_old_file) {
  const TempFolder folder;
  folder.write("a", "old");
  const int status = in_child([&] {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{4096, 4096};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    try {
      write_file_atomic(folder / "a", std::string(100000, 'x'));
    } catch (const IoError&) {
      return 7;
    }
    return 0;
  });
  EXPECT_EQ(status, 7);
  EXPECT_EQ(read_file(folder / "a"), "old");
  EXPECT_EQ(list_folder(folder.path()), Names{"a"});
}

TEST(File, b64_an_unwritable_folder_is_an_error) {
  const TempFolder folder;
  folder.write("a", "old");
  ASSERT_EQ(::chmod(folder.path().c_str(), 0555), 0);
  const int status = in_child([&] {
    if (::geteuid() == 0 && ::setuid(65534) != 0) return 1;
    try {
      write_file_atomic(folder / "a", "new");
    } catch (const IoError&) {
      return 7;
    }
    return 0;
  });
  ASSERT_EQ(::chmod(folder.path().c_str(), 0755), 0);
  EXPECT_EQ(status, 7);
  EXPECT_EQ(read_file(folder / "a"), "old");
  EXPECT_EQ(list_folder(folder.path()), Names{"a"});
}

TEST(File, maps_whole_files) {
  const TempFolder folder;
  const fs::path path = folder.write("a", "hello");
  const auto map = MappedFile::open(path);
  ASSERT_EQ(map->size(), 5u);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(map->data()), map->size()), "hello");
  const auto empty = MappedFile::open(folder.write("b", ""));
  EXPECT_EQ(empty->size(), 0u);
}

}  // namespace
