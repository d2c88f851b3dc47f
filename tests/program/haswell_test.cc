// The program on a processor without AVX-512, which is where code of a wrong instruction set
// crashes.
#include <gtest/gtest.h>

#include "base/json.h"
#include "support/process.h"

using namespace qkv;
using namespace qkv::testing;

namespace {

Finished run_emulated(const std::string& cpu, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"qemu-x86_64", "-cpu", cpu, QKV_BINARY_DIR "/qkv"});
  return run_program(arguments);
}

}  // namespace

#ifdef QKV_SANITIZED
#define SKIP_WITHOUT_QEMU() GTEST_SKIP() << "sanitizers do not run under qemu"
#else
#define SKIP_WITHOUT_QEMU() \
  if (!have_program("qemu-x86_64")) GTEST_SKIP() << "needs qemu-x86_64 (package qemu-user)"
#endif

TEST(Emulated, haswell_uses_avx2) {
  SKIP_WITHOUT_QEMU();
  const Finished run = run_emulated("Haswell", {"info", "--json"});
  ASSERT_EQ(run.status, 0) << run.err;
  EXPECT_EQ(Json::parse(run.out).at("isa").as_string(), "avx2");
}

TEST(Emulated, processor_without_avx_uses_plain_code) {
  SKIP_WITHOUT_QEMU();
  const Finished run = run_emulated("Nehalem", {"info", "--json"});
  ASSERT_EQ(run.status, 0) << run.err;
  EXPECT_EQ(Json::parse(run.out).at("isa").as_string(), "generic");
}
