// The installed package: find_package from another project, and what the shared library exports.
#include <sstream>

#include <gtest/gtest.h>

#include "support/files.h"
#include "support/process.h"

using namespace qkv::testing;

TEST(Package, installs_and_serves_another_project) {
#ifdef QKV_SANITIZED
  GTEST_SKIP() << "the example project is built without sanitizers";
#endif
  const TempFolder folder;
  const std::string prefix = folder / "prefix", build = folder / "build";
  const Finished install = run_program({"cmake", "--install", QKV_BINARY_DIR, "--prefix", prefix});
  ASSERT_EQ(install.status, 0) << install.out << install.err;
  const Finished configure =
      run_program({"cmake", "-G", "Ninja", "-S", QKV_SOURCE_DIR "/tests/package", "-B", build,
                   "-DCMAKE_PREFIX_PATH=" + prefix});
  ASSERT_EQ(configure.status, 0) << configure.out << configure.err;
  const Finished compile = run_program({"cmake", "--build", build});
  ASSERT_EQ(compile.status, 0) << compile.out << compile.err;
  for (const char* program : {"/uses_shared", "/uses_static"}) {
    const Finished run = run_program({build + program});
    EXPECT_EQ(run.status, 0) << program << run.err;
    EXPECT_NE(run.out.find("; 4"), std::string::npos) << program << run.out;
  }
}

TEST(Package, shared_library_exports_nothing_but_qkv) {
  if (!have_program("nm")) GTEST_SKIP() << "needs nm (package binutils)";
  const Finished run =
      run_program({"nm", "-DC", "--defined-only", QKV_BINARY_DIR "/src/libqkv.so"});
  ASSERT_EQ(run.status, 0) << run.err;
  std::istringstream lines(run.out);
  int symbols = 0;
  for (std::string line; std::getline(lines, line);) {
    const bool version_tag = line.ends_with(" A QKV_0");
    EXPECT_TRUE(version_tag || line.find("qkv::") != std::string::npos) << line;
    ++symbols;
  }
  EXPECT_GT(symbols, 10);
}
