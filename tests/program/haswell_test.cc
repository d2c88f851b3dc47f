// The program on a processor without AVX-512, which is where code of a wrong instruction set
// crashes.
#include <gtest/gtest.h>

#include "base/json.h"
#include "support/process.h"
#include "support/tiny_task.h"

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
  const Finished run = run_emulated("Haswell", {"info", "--no-peak", "--json"});
  ASSERT_EQ(run.status, 0) << run.err;
  EXPECT_EQ(Json::parse(run.out).at("isa").as_string(), "avx2");
}

TEST(Emulated, processor_without_avx_uses_plain_code) {
  SKIP_WITHOUT_QEMU();
  const Finished run = run_emulated("Nehalem", {"info", "--no-peak", "--json"});
  ASSERT_EQ(run.status, 0) << run.err;
  EXPECT_EQ(Json::parse(run.out).at("isa").as_string(), "generic");
}

// Training here, use there: every kernel of inference runs in its AVX2 and its plain form.
TEST(Emulated, older_processors_classify_alike) {
  SKIP_WITHOUT_QEMU();
  const TinyTask task(60);
  const std::string model = task.folder / "model";
  train::train_classifier(task.config({"train.epochs=4"}), model, false);
  const std::vector<std::string> arguments = {"classify",  model, "--json",
                                              "--threads", "1",   "I want the red car 7"};
  const Finished here = run_qkv(arguments);
  ASSERT_EQ(here.status, 0) << here.err;
  for (const char* cpu : {"Haswell", "Nehalem"}) {
    const Finished there = run_emulated(cpu, arguments);
    ASSERT_EQ(there.status, 0) << cpu << there.err;
    EXPECT_EQ(Json::parse(there.out).at("label"), Json::parse(here.out).at("label")) << cpu;
    EXPECT_NEAR(Json::parse(there.out).at("score").as_double(),
                Json::parse(here.out).at("score").as_double(), 1e-4)
        << cpu;
  }
}
