// The worked examples check themselves: a wrong figure ends them with status 1.
#include <gtest/gtest.h>

#include "support/process.h"

using namespace qkv::testing;

namespace {
void expect_good(const std::string& example, const std::string& part) {
  const Finished run = run_program({QKV_BINARY_DIR "/examples/example_" + example});
  EXPECT_EQ(run.status, 0) << run.out << run.err;
  EXPECT_NE(run.out.find(part), std::string::npos) << run.out;
}
}  // namespace

TEST(Examples, masked_attention_step_by_step) { expect_good("masked_attention", "[8, 4, 4]"); }
TEST(Examples, manual_and_fused_attention_agree) { expect_good("manual_and_fused", "float64"); }
TEST(Examples, block_gradient_is_right) { expect_good("block_gradient", "attention.qkv.weight"); }
