// The benchmarks of `qkv bench`: each calls `emit` once per record, as soon as it stands.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bench/measure.h"

namespace qkv::inline v0::bench {

using Emit = std::function<void(const Record&)>;

struct SuiteOptions {
  bool quick = false;            // fewer shapes and shorter runs: to see that it works
  std::filesystem::path shapes;  // attention: a JSON list of shapes instead of the built-in ones
  std::uint64_t seed = 0;        // of random inputs and weights
  MeasureOptions measure() const {
    return quick ? MeasureOptions{0.02, 0.02, 3, 20} : MeasureOptions{};
  }
};

struct Suite {
  const char* name;
  const char* title;    // of the plot
  const char* x_label;  // of the plot; empty: bars
  void (*run)(const SuiteOptions&, const Emit&);
};
std::span<const Suite> suites();
// ArgumentError naming the known ones.
const Suite& find_suite(std::string_view name);

void run_attention(const SuiteOptions& options, const Emit& emit);
void run_gemm(const SuiteOptions& options, const Emit& emit);
void run_linear(const SuiteOptions& options, const Emit& emit);
void run_quantized(const SuiteOptions& options, const Emit& emit);
void run_elementwise(const SuiteOptions& options, const Emit& emit);
void run_encode(const SuiteOptions& options, const Emit& emit);
void run_train(const SuiteOptions& options, const Emit& emit);

// The machine's limits right now: multiply-adds, e^x, and passes over memory in and out of the
// caches. `seconds` is what the probe's work takes at that rate. quick: without those that need
// much memory.
std::vector<Record> peak_records(bool quick);

// Lengths of texts as they come in practice: `count` of them around `mean` tokens (log-normal,
// deviation 0.5), each in [2, 12 mean]. A pure function of its arguments.
std::vector<std::int64_t> text_lengths(std::int64_t count, double mean, std::uint64_t seed);

// The plot and the JSON document of one suite's records.
std::string suite_plot(const Suite& suite, std::span<const Record> records);
Json suite_json(const Suite& suite, std::span<const Record> records);
Json machine_json();
// Bars of {"title", "subtitle", "y_label", "categories": [...], "series": [{"name", "y": [...]}],
// "references":
// [{"name", "y"}]}, as bench/compare_*.py writes them. DataError for another form.
std::string bar_plot_of(const Json& plot);

}  // namespace qkv::inline v0::bench
