// The choice among implementations, and its explanation.
#include "kernels/registry.h"

#include <algorithm>
#include <cstring>

#include <gtest/gtest.h>

#include "qkv/error.h"

using namespace qkv;
using kernels::Implementation;
using kernels::ImplementationScope;

namespace {
constexpr int kBest = 3, kMiddle = 2, kPlain = 1;
constexpr Implementation<int> kList[] = {{"avx512", Isa::kAvx512, &kBest},
                                         {"avx2", Isa::kAvx2, &kMiddle},
                                         {"reference", Isa::kGeneric, &kPlain}};
}  // namespace

TEST(Registry, takes_the_first_that_may_run) {
  const int right = active_isa() >= Isa::kAvx512 ? kBest
                    : active_isa() == Isa::kAvx2 ? kMiddle
                                                 : kPlain;
  EXPECT_EQ(kernels::pick<int>(kList), right);
}

TEST(Registry, a_scope_forces_one_by_name) {
  {
    const ImplementationScope scope("reference");
    EXPECT_EQ(kernels::pick<int>(kList), kPlain);
    const auto why = kernels::explain<int>(kList);
    ASSERT_EQ(why.size(), 3u);
    EXPECT_NE(why[0].refusal.find("reference"), std::string::npos);
    EXPECT_TRUE(why[2].refusal.empty());
  }
  EXPECT_EQ(kernels::forced_implementation(), nullptr);
  EXPECT_THROW(ImplementationScope("sse9"), ArgumentError);
}

TEST(Registry, refusals_name_the_instruction_set) {
  const auto why = kernels::explain<int>(kList);
  EXPECT_TRUE(why.back().refusal.empty());
  for (std::size_t i = 0; i + 1 < why.size(); ++i)
    EXPECT_NE(why[i].refusal.find("needs"), std::string::npos);
}

TEST(Registry, every_group_ends_in_the_reference) {
  const auto names = kernels::runnable_implementations();
  ASSERT_FALSE(names.empty());
  EXPECT_STREQ(names.back(), "reference");
  EXPECT_STREQ(names.front(), isa_name(std::min(active_isa(), Isa::kAvx512)));
}
