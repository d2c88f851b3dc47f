// Probes, measurements, records and plots.
#include <cmath>
#include <regex>
#include <string>

#include <gtest/gtest.h>

#include "qkv/threads.h"

#include "bench/measure.h"
#include "bench/probe.h"
#include "bench/suites.h"
#include "bench/svg_plot.h"
#include "support/files.h"

using namespace qkv;
using namespace qkv::bench;

namespace {

struct FixedProbe : Probe {
  double rate = 100;
  double once() override { return rate; }
};

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

// Every element of the plot closes, and no coordinate is a NaN.
void expect_sound(const std::string& svg) {
  EXPECT_EQ(svg.rfind("<svg ", 0), 0u);
  EXPECT_EQ(count(svg, "<text"), count(svg, "</text>"));
  EXPECT_EQ(count(svg, "<svg"), count(svg, "</svg>"));
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf\""), std::string::npos);
  EXPECT_NE(svg.find("prefers-color-scheme:dark"), std::string::npos);
}

}  // namespace

TEST(Probe, limits_are_those_of_a_processor) {
  const double one = MultiplyAddProbe(1).best(0.01);
  EXPECT_GT(one, 1e9);
  EXPECT_LT(one, 1e12);
  EXPECT_GT(ExponentialProbe().best(0.01), 1e7);
  EXPECT_LT(ExponentialProbe().best(0.01), 1e12);
}

TEST(Probe, bandwidth_of_every_traffic) {
  for (const Traffic traffic :
       {Traffic{1, 0, 0}, Traffic{0, 0, 1}, Traffic{1, 0, 1}, Traffic{3, 0, 1}, Traffic{2, 0, 2},
        Traffic{0, 4, 0}, Traffic{2, 2, 4}}) {
    const double rate = BandwidthProbe(traffic, 100'000).best(0.005);
    EXPECT_GT(rate, 1e8);
    EXPECT_LT(rate, 1e13);
  }
  EXPECT_EQ((Traffic{2, 1, 1}).bytes_per_element(), 20);
  EXPECT_THROW(BandwidthProbe({0, 0, 0}, 100), ArgumentError);
  EXPECT_THROW(BandwidthProbe({5, 0, 0}, 100), ArgumentError);
}

TEST(Measure, median_is_that_of_runs_beside_a_fast_probe) {
  FixedProbe probe;
  int calls = 0;
  static double time = 0;
  // The runs beside the slow probe take longer; the median must not see them.
  const auto body = [&] {
    ++calls;
    const bool slow = calls > 8;
    probe.rate = slow ? 50 : 100;
    time += slow ? 2.0 : 0.2;
  };
  const Measurement m = measure(body, probe, {0.0, 0.0, 12, 12, [] { return time; }});
  EXPECT_EQ(m.runs, 12);
  EXPECT_GE(m.dropped, 4);
  EXPECT_EQ(m.peak, 100);
  EXPECT_NEAR(m.seconds, 0.2, 1e-12);
}

TEST(Record, json_has_the_promised_keys) {
  Record r;
  r.name = "linear/x";
  r.seconds = 2;
  r.work = 4e9;
  r.unit = "GFLOP/s";
  r.peak_share = 0.5;
  const Json json = r.to_json();
  EXPECT_EQ(json.at("name").as_string(), "linear/x");
  EXPECT_EQ(json.at("seconds").as_double(), 2);
  EXPECT_EQ(json.at("gflops").as_double(), 2);
  EXPECT_EQ(json.at("peak_share").as_double(), 0.5);
  r.unit = "GB/s";
  r.peak_share = 0;
  EXPECT_TRUE(r.to_json().at("gflops").is_null());
  EXPECT_TRUE(r.to_json().at("peak_share").is_null());
}

TEST(Suites, names_are_known_and_wrong_ones_refused) {
  for (const char* name :
       {"attention", "gemm", "linear", "quantized", "elementwise", "encode", "train"})
    EXPECT_STREQ(find_suite(name).name, name);
  EXPECT_THROW(find_suite("atention"), ArgumentError);
}

TEST(Suites, quick_runs_give_sound_records_and_plots) {
  for (const char* name :
       {"attention", "gemm", "linear", "quantized", "elementwise", "encode", "train"}) {
    const Suite& suite = find_suite(name);
    SuiteOptions options;
    options.quick = true;
    std::vector<Record> records;
    suite.run(options, [&](const Record& r) { records.push_back(r); });
    ASSERT_FALSE(records.empty()) << name;
    for (const Record& r : records) {
      EXPECT_GT(r.seconds, 0) << r.name;
      EXPECT_GT(r.rate(), 0) << r.name;
      EXPECT_TRUE(std::isfinite(r.peak_share) && r.peak_share > 0) << r.name;
    }
    expect_sound(suite_plot(suite, records));
    EXPECT_EQ(suite_json(suite, records).at("records").size(), records.size());
  }
}

TEST(Suites, attention_takes_shapes_from_a_file) {
  const qkv::testing::TempFolder folder;
  SuiteOptions options;
  options.quick = true;
  options.shapes = folder.write(
      "shapes.json", R"([{"name": "a", "heads": 2, "d": 8, "lengths": [3, 5], "causal": true}])");
  std::vector<Record> records;
  run_attention(options, [&](const Record& r) { records.push_back(r); });
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[0].name, "attention/forward a");
  EXPECT_EQ(records[0].work, 2 * 2 * (6 + 15) * 2 * 8);
  options.shapes =
      folder.write("bad.json", R"([{"name": "a", "heads": 0, "d": 8, "lengths": [3]}])");
  EXPECT_THROW(run_attention(options, [](const Record&) {}), ArgumentError);
}

TEST(Suites, text_lengths_are_reproducible_and_near_their_mean) {
  const auto lengths = text_lengths(4000, 13, 1);
  EXPECT_EQ(lengths, text_lengths(4000, 13, 1));
  double sum = 0;
  for (const auto n : lengths) {
    EXPECT_GE(n, 2);
    sum += static_cast<double>(n);
  }
  EXPECT_NEAR(sum / 4000, 13, 0.7);
}

TEST(Plot, lines_and_bars_are_sound) {
  PlotOptions options;
  options.title = "a < b & \"c\"";
  options.log_x = true;
  options.references = {{"target", 85}};
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::string lines =
      line_plot({{"one", {128, 256, 512}, {40, nan, 90}}, {"two", {128, 512}, {10, 20}}}, options);
  expect_sound(lines);
  EXPECT_NE(lines.find("a &lt; b &amp; &quot;c&quot;"), std::string::npos);
  EXPECT_EQ(count(lines, "target"), 1u);
  expect_sound(
      bar_plot({"x", "y"}, {{"one", {}, {1, -2}}, {"two", {}, {nan, 3}}}, {.title = "bars"}));
  expect_sound(line_plot({{"flat", {1, 2}, {0, 0}}}, {.title = "flat"}));
  expect_sound(line_plot({{"log", {1, 2}, {1e-3, 1e5}}}, {.title = "log", .log_y = true}));
}

TEST(Plot, bad_input_is_refused) {
  EXPECT_THROW(line_plot({}, {}), ArgumentError);
  EXPECT_THROW(line_plot({{"a", {1}, {std::nan("")}}}, {}), ArgumentError);
  EXPECT_THROW(line_plot({{"a", {1, 2}, {1}}}, {}), ArgumentError);
  EXPECT_THROW(line_plot({{"a", {0, 2}, {1, 1}}}, {.log_x = true}), ArgumentError);
  EXPECT_THROW(line_plot({{"a", {1}, {0}}}, {.log_y = true}), ArgumentError);
  EXPECT_THROW(bar_plot({"x"}, {{"a", {}, {1, 2}}}, {}), ArgumentError);
}

TEST(Plot, results_of_other_programs_are_drawn_or_refused) {
  expect_sound(bar_plot_of(Json::parse(
      R"({"title": "t", "categories": ["a"], "series": [{"name": "s", "y": [2]}], "references": [{"name": "one", "y": 1}]})")));
  EXPECT_THROW(bar_plot_of(Json::parse(R"({"title": "t", "categories": ["a"]})")), DataError);
}
