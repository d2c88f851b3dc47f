// Figures of a classifier against values worked out by hand.
#include "metrics/classification.h"

#include <gtest/gtest.h>

#include "qkv/error.h"

using namespace qkv;
using metrics::Confusion;

namespace {

Confusion counted(std::int64_t classes, std::initializer_list<std::pair<int, int>> answers) {
  Confusion confusion(classes);
  for (const auto& [truth, predicted] : answers) confusion.add(truth, predicted);
  return confusion;
}

}  // namespace

TEST(Confusion, accuracy_and_f1_of_a_small_table) {
  // truth:      0 0 0 1 1 2     predicted:  0 0 1 1 0 2
  const Confusion c = counted(3, {{0, 0}, {0, 0}, {0, 1}, {1, 1}, {1, 0}, {2, 2}});
  EXPECT_EQ(c.total(), 6);
  EXPECT_EQ(c.at(0, 1), 1);
  EXPECT_DOUBLE_EQ(c.accuracy(), 4.0 / 6);
  const auto classes = c.per_class();
  EXPECT_DOUBLE_EQ(classes[0].precision, 2.0 / 3);
  EXPECT_DOUBLE_EQ(classes[0].recall, 2.0 / 3);
  EXPECT_DOUBLE_EQ(classes[1].f1, 0.5);
  EXPECT_DOUBLE_EQ(classes[2].f1, 1.0);
  EXPECT_DOUBLE_EQ(c.macro_f1(), (2.0 / 3 + 0.5 + 1) / 3);
}

TEST(Confusion, classes_that_do_not_occur_are_left_out_of_the_mean) {
  // Class 2 occurs neither as truth nor as a prediction, class 1 only as a wrong prediction.
  const Confusion c = counted(3, {{0, 0}, {0, 1}});
  EXPECT_DOUBLE_EQ(c.macro_f1(), (2.0 / 3 + 0) / 2);
}

TEST(Confusion, an_empty_table_gives_zeros_and_no_nan) {
  const Confusion c(4);
  EXPECT_EQ(c.accuracy(), 0);
  EXPECT_EQ(c.macro_f1(), 0);
}

TEST(Confusion, values_outside_are_refused) {
  EXPECT_THROW(Confusion(0), ArgumentError);
  Confusion c(2);
  EXPECT_THROW(c.add(2, 0), ArgumentError);
  EXPECT_THROW(c.add(0, -1), ArgumentError);
}
