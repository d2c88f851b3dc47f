#include "base/nearest.h"

#include <vector>

#include <gtest/gtest.h>

using namespace qkv;

TEST(Nearest, finds_the_misspelt_name) {
  const std::vector<std::string> names = {"train", "eval", "classify", "tokenize"};
  EXPECT_EQ(nearest_name("trian", names), "train");
  EXPECT_EQ(nearest_name("clasify", names), "classify");
  EXPECT_EQ(nearest_name("eval", names), "eval");
}

TEST(Nearest, gives_nothing_for_what_is_far_from_all) {
  const std::vector<std::string> names = {"train", "eval"};
  EXPECT_EQ(nearest_name("quantization", names), "");
  EXPECT_EQ(nearest_name("", names), "");
  EXPECT_EQ(nearest_name("train", {}), "");
}

TEST(Nearest, counts_a_swap_of_neighbours_as_one_change) {
  const std::vector<std::string> names = {"abdc", "abxx"};
  EXPECT_EQ(nearest_name("abcd", names), "abdc");
}

TEST(Nearest, gives_up_on_words_of_any_length) {
  const std::vector<std::string> names = {"train"};
  EXPECT_EQ(nearest_name(std::string(1 << 20, 't'), names), "");
}
