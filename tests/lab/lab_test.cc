// The lab's framework, and the outcomes of its experiments.
#include "lab/lab.h"

#include <set>
#include <string>

#include <gtest/gtest.h>

#include "lab/plot.h"
#include "support/files.h"
#include "support/process.h"

using namespace qkv;
using namespace qkv::testing;

namespace {

lab::Result run(const char* name) { return lab::find_experiment(name).run({}); }
double figure(const lab::Result& result, const char* key) {
  return result.measured.at(key).as_double();
}

}  // namespace

TEST(Lab, names_are_unique_and_found) {
  std::set<std::string> names;
  for (const lab::Experiment& e : lab::experiments()) {
    EXPECT_TRUE(names.insert(e.name).second);
    EXPECT_EQ(&lab::find_experiment(e.name), &e);
  }
  EXPECT_EQ(names.size(), 10u);
}

TEST(Lab, unknown_name_is_refused_and_the_nearest_named) {
  try {
    lab::find_experiment("mask-zeros");
    FAIL();
  } catch (const ArgumentError& error) {
    EXPECT_NE(std::string(error.what()).find("did you mean mask-zero?"), std::string::npos)
        << error.what();
  }
}

TEST(Lab, json_says_true_false_or_null) {
  const lab::Experiment& e = lab::find_experiment("mask-zero");
  lab::Result result;
  result.measured = Json::object();
  EXPECT_TRUE(lab::to_json(e, result).at("holds").is_null());
  result.holds = lab::Holds::kTrue;
  EXPECT_TRUE(lab::to_json(e, result).at("holds").as_bool());
  result.holds = lab::Holds::kFalse;
  EXPECT_FALSE(lab::to_json(e, result).at("holds").as_bool());
  EXPECT_EQ(lab::to_json(e, result).at("claim").as_string(), e.claim);
}

TEST(Lab, text_aligns_columns_by_display_width) {
  lab::Result result;
  result.table = {{"到", "b"}, {{"aaaa", "1"}, {"红色", "22"}}};
  const std::string text = lab::to_text(lab::find_experiment("mask-zero"), result);
  EXPECT_NE(text.find("  到      b\n  aaaa    1\n  红色   22\n"), std::string::npos) << text;
}

TEST(Lab, same_seed_gives_the_same_figures) {
  const lab::Result a = run("mask-zero"), b = run("mask-zero");
  EXPECT_EQ(a.measured.dump(), b.measured.dump());
  lab::Options other;
  other.seed = 2;
  EXPECT_NE(lab::find_experiment("mask-zero").run(other).measured.dump(), a.measured.dump());
}

TEST(Lab, score_variance_is_the_width) {
  const lab::Result result = run("score-variance");
  EXPECT_EQ(result.holds, lab::Holds::kTrue) << result.verdict;
  EXPECT_LT(figure(result, "largest_deviation"), 0.05);
  EXPECT_EQ(result.table.rows.size(), 5u);
}

TEST(Lab, scale_gradient_does_not_hold_as_reported) {
  const lab::Result result = run("scale-gradient");
  EXPECT_EQ(result.holds, lab::Holds::kFalse) << result.verdict;
  EXPECT_NEAR(figure(result, "gradient_ratio_at_64"), 30, 10);
  EXPECT_NEAR(figure(result, "largest_weight_at_64"), 0.71, 0.05);
  EXPECT_GT(figure(result, "dead_rows_at_512"), 0.02);
  EXPECT_LT(figure(result, "dead_rows_at_64"), 0.05);
}

TEST(Lab, mask_zero_leaks_and_skipping_does_not) {
  const lab::Result result = run("mask-zero");
  EXPECT_EQ(result.holds, lab::Holds::kTrue) << result.verdict;
  EXPECT_GT(figure(result, "write_zero_mean"), 0.2);
  EXPECT_EQ(figure(result, "skip_largest"), 0);
  EXPECT_EQ(figure(result, "minus_infinity_largest"), 0);
}

TEST(Lab, mask_values_differ) {
  const lab::Result result = run("mask-values");
  EXPECT_EQ(result.holds, lab::Holds::kTrue) << result.verdict;
  const auto weight = [&](const char* format, const char* value, const char* which) {
    return result.measured.at(format).at(value).at(which).as_double();
  };
  EXPECT_NEAR(weight("float32", "-1e4", "outliers"), 1, 1e-6);
  EXPECT_EQ(weight("float32", "-1e9", "outliers"), 0);
  EXPECT_NEAR(weight("float32", "lowest", "row_blocked"), 1, 1e-6);
  EXPECT_EQ(weight("float32", "lowest", "row_blocked_twice"), 0);  // overflowed to -inf
  EXPECT_EQ(weight("float16", "-1e9", "row_blocked"), 0);          // beyond the format: -inf
  for (const char* format : {"float32", "bfloat16", "float16"}) {
    for (const char* which : {"usual", "outliers", "row_blocked", "row_blocked_twice"})
      EXPECT_EQ(weight(format, "-inf", which), 0) << format << " " << which;
  }
}

TEST(Lab, fused_equals_manual_in_double) {
  const lab::Result result = run("fused-equals-manual");
  EXPECT_EQ(result.holds, lab::Holds::kTrue) << result.verdict;
  EXPECT_LE(result.measured.at("float64").at("out").as_double(), 1e-15);
  EXPECT_GT(result.measured.at("float32").at("out").as_double(), 0);
}

TEST(Lab, mask_polarity_changes_the_output_silently) {
  const lab::Result result = run("mask-polarity");
  EXPECT_EQ(result.holds, lab::Holds::kTrue) << result.verdict;
  EXPECT_EQ(figure(result, "share_finite"), 1);
  EXPECT_GT(figure(result, "share_changed"), 0.9);
  EXPECT_TRUE(result.measured.at("bare_array_refused_by_compiler").as_bool());
}

TEST(Lab, flash_memory_is_linear) {
  const lab::Result result = run("flash-memory");
  EXPECT_EQ(result.holds, lab::Holds::kTrue) << result.verdict;
  EXPECT_NEAR(figure(result, "naive_exponent"), 2, 0.15);
  EXPECT_GT(figure(result, "flash_exponent"), 0.6);  // scratch of fixed size flattens the start
  EXPECT_LT(figure(result, "flash_exponent"), 1.2);
  EXPECT_LT(figure(result, "largest_difference"), 1e-5);
}

TEST(Lab, order_blind_without_positions) {
  const lab::Result result = run("order-blind");
  EXPECT_EQ(result.holds, lab::Holds::kTrue) << result.verdict;
  EXPECT_LT(figure(result, "none"), 1e-5);
  for (const char* kind : {"sinusoidal", "learned", "rope"})
    EXPECT_GT(figure(result, kind), 1e-3) << kind;
}

TEST(Lab, position_shift_keeps_norm_and_inner_product_alone) {
  const lab::Result result = run("position-shift");
  EXPECT_EQ(result.holds, lab::Holds::kFalse) << result.verdict;
  EXPECT_NEAR(figure(result, "cosine_100_1000"), -0.208, 5e-4);
  EXPECT_NEAR(figure(result, "norm"), 11.5242, 5e-5);
  EXPECT_NEAR(figure(result, "inner_product"), 189.597, 5e-4);
  EXPECT_LT(figure(result, "norm_spread"), 1e-9);
}

TEST(LabPlot, charts_escape_text_and_hold_every_line) {
  lab::LineChart chart{"a < b & \"c\"",
                       "x",
                       "y",
                       true,
                       true,
                       {{"one", {{1, 1}, {10, 100}, {0, 5}}}, {"two", {{2, 3}}}}};
  const std::string svg = lab::line_chart(chart);
  EXPECT_NE(svg.find("a &lt; b &amp; &quot;c&quot;"), std::string::npos);
  EXPECT_NE(svg.find(">one<"), std::string::npos);
  EXPECT_NE(svg.find(">two<"), std::string::npos);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf"), std::string::npos);
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
}

TEST(LabPlot, a_flat_or_empty_chart_is_still_a_picture) {
  EXPECT_EQ(
      lab::line_chart({"flat", "x", "y", false, false, {{"one", {{1, 2}, {2, 2}}}}}).find("nan"),
      std::string::npos);
  EXPECT_EQ(lab::line_chart({"empty", "x", "y", true, true, {}}).find("nan"), std::string::npos);
}

TEST(LabVerb, lists_runs_and_writes) {
  const Finished list = run_qkv({"lab", "--list", "--json"});
  EXPECT_EQ(list.status, 0) << list.err;
  EXPECT_EQ(std::count(list.out.begin(), list.out.end(), '\n'), 10);
  TempFolder folder;
  const Finished one =
      run_qkv({"lab", "position-shift", "--json", "--out", folder.path().string()});
  EXPECT_EQ(one.status, 0) << one.err;
  const Json json = Json::parse(one.out);
  EXPECT_FALSE(json.at("holds").as_bool());
  EXPECT_EQ(list_folder(folder.path()),
            (std::vector<std::string>{"position-shift.json", "position-shift.svg"}));
  EXPECT_EQ(run_qkv({"lab", "position-shifts"}).status, 2);
}
