#include "base/cpu.h"

#include <array>
#include <cstdio>
#include <string>

#include <gtest/gtest.h>
#include <unistd.h>

#include "support/process.h"

namespace {
using namespace qkv;
namespace testing = qkv::testing;

TEST(Cpu, names) {
  EXPECT_STREQ(isa_name(Isa::kGeneric), "generic");
  EXPECT_STREQ(isa_name(Isa::kAvx2), "avx2");
  EXPECT_STREQ(isa_name(Isa::kAvx512), "avx512");
  EXPECT_STREQ(isa_name(Isa::kAvx512Bf16), "avx512_bf16");
  EXPECT_STREQ(isa_name(Isa::kAmx), "amx");
}

TEST(Cpu, the_choice_is_one_the_processor_has) {
  const CpuFeatures& f = cpu_features();
  EXPECT_TRUE(active_isa() < Isa::kAvx512 || f.avx512);
  EXPECT_TRUE(active_isa() < Isa::kAvx512Bf16 || f.avx512_bf16);
  EXPECT_TRUE(active_isa() < Isa::kAmx || (f.amx_tile && f.amx_bf16 && f.amx_allowed));
  EXPECT_TRUE(active_isa() == Isa::kGeneric || f.avx2);
  EXPECT_TRUE(active_isa_reason().starts_with(isa_name(active_isa())));
}

testing::Finished run_self(const std::string& isa) {
  return testing::run_program({"/proc/self/exe", "--gtest_filter=Cpu.names"},
                              {.input = "", .environment = {"QKV_MAX_ISA=" + isa}, .folder = ""});
}

TEST(Cpu, the_environment_lowers_the_choice) {
  EXPECT_NE(run_self("generic").out.find("isa generic: "), std::string::npos);
  const std::string avx2 = run_self("avx2").out;
  EXPECT_NE(avx2.find(cpu_features().avx2 ? "isa avx2: " : "isa generic: "), std::string::npos);
  // One level above what there is changes nothing.
  EXPECT_NE(run_self("amx").out.find(std::string("isa ") + isa_name(active_isa()) + ": "),
            std::string::npos);
  const testing::Finished bad = run_self("sse9");
  EXPECT_NE(
      bad.err.find("expected QKV_MAX_ISA=generic, avx2, avx512, avx512_bf16 or amx, got 'sse9'"),
      std::string::npos);
  EXPECT_NE(bad.status, 0);
}

}  // namespace
