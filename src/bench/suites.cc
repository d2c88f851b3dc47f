#include "bench/suites.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include <fmt/format.h>

#include "qkv/threads.h"
#include "qkv/version.h"

#include "base/check.h"
#include "base/cpu.h"
#include "base/random.h"
#include "bench/svg_plot.h"

namespace qkv::inline v0::bench {
namespace {

constexpr std::array kSuites = {
    Suite{"attention", "Attention", "tokens per sequence", run_attention},
    Suite{"gemm", "Matrix products on one thread, fp32", "rows and columns", run_gemm},
    Suite{"linear", "Linear layers, fp32", "rows (tokens)", run_linear},
    Suite{"quantized", "Products with stored weights, fp32 activations", "", run_quantized},
    Suite{"elementwise", "Passes over memory, fp32", "", run_elementwise},
    Suite{"encode", "Encoding texts of mixed lengths, fp32", "", run_encode},
    Suite{"train", "Training an encoder classifier, fp32", "", run_train},
};

std::string machine_line() {
  return fmt::format("{}, {}, {} thread{}", cpu_features().model, isa_name(active_isa()),
                     num_threads(), num_threads() == 1 ? "" : "s");
}

// One group of bars per category, one bar per series.
template <class Value>
std::string suite_bars(std::span<const Record> records, const Value& value,
                       const PlotOptions& options) {
  std::vector<std::string> categories, names;
  const auto index = [](std::vector<std::string>& list, const std::string& name) {
    const auto it = std::find(list.begin(), list.end(), name);
    const auto i = static_cast<std::size_t>(it - list.begin());
    if (it == list.end()) list.push_back(name);
    return i;
  };
  for (const Record& r : records) {
    index(categories, r.category);
    index(names, r.series);
  }
  std::vector<PlotSeries> series;
  for (const std::string& name : names)
    series.push_back({name, {}, std::vector<double>(categories.size(), std::nan(""))});
  for (const Record& r : records)
    series[index(names, r.series)].y[index(categories, r.category)] = value(r);
  return bar_plot(categories, series, options);
}

}  // namespace

std::span<const Suite> suites() { return kSuites; }

const Suite& find_suite(std::string_view name) {
  std::string known;
  for (const Suite& suite : kSuites) {
    if (name == suite.name) return suite;
    known += (known.empty() ? "" : ", ") + std::string(suite.name);
  }
  fail<ArgumentError>("bench", "expected one of {}, got '{}'", known, name);
}

std::vector<Record> peak_records(bool quick) {
  std::vector<Record> records;
  const auto add = [&](std::string name, const char* unit, double work, Probe& probe) {
    Record r;
    r.name = std::move(name);
    r.work = work;
    r.seconds = work / probe.best();
    r.unit = unit;
    r.peak_share = 1;
    records.push_back(std::move(r));
  };
  MultiplyAddProbe multiply_adds;
  add("peak/multiply-add", "GFLOP/s", 1e9, multiply_adds);
  ExponentialProbe exponentials;
  add("peak/exp", "Gexp/s", 1e9, exponentials);
  struct Pass {
    const char* name;
    Traffic traffic;
    std::int64_t bytes;  // of all arrays
    bool large;
  };
  constexpr std::int64_t kKiB = 1024, kMiB = 1024 * kKiB;
  for (const Pass& pass : {Pass{"read 512 KiB", {1, 0, 0}, 512 * kKiB, false},
                           Pass{"copy 512 KiB", {1, 0, 1}, 512 * kKiB, false},
                           Pass{"read 256 MiB", {1, 0, 0}, 256 * kMiB, true},
                           Pass{"write 256 MiB", {0, 0, 1}, 256 * kMiB, true},
                           Pass{"copy 256 MiB", {1, 0, 1}, 256 * kMiB, true}}) {
    if (quick && pass.large) continue;
    BandwidthProbe probe(pass.traffic, pass.bytes / 4 / pass.traffic.arrays());
    add(fmt::format("peak/{}", pass.name), "GB/s", static_cast<double>(pass.bytes), probe);
  }
  return records;
}

std::vector<std::int64_t> text_lengths(std::int64_t count, double mean, std::uint64_t seed) {
  constexpr double kDeviation = 0.5;
  Random random(seed, hash_text("text lengths"));
  std::vector<std::int64_t> lengths;
  for (std::int64_t i = 0; i < count; ++i) {
    const double length =
        mean * std::exp(kDeviation * random.normal() - kDeviation * kDeviation / 2);
    lengths.push_back(std::clamp<std::int64_t>(std::llround(length), 2, std::llround(12 * mean)));
  }
  return lengths;
}

std::string suite_plot(const Suite& suite, std::span<const Record> records) {
  PlotOptions options;
  options.title = suite.title;
  options.subtitle = machine_line();
  options.x_label = suite.x_label;
  const bool has_share =
      std::any_of(records.begin(), records.end(), [](const Record& r) { return r.peak_share > 0; });
  options.y_label = has_share ? "% of the measured peak" : records.empty() ? "" : records[0].unit;
  const auto value = [&](const Record& r) {
    return has_share ? 100 * r.peak_share : r.shown_rate();
  };
  if (options.x_label.empty()) return suite_bars(records, value, options);
  options.log_x = true;
  std::vector<PlotSeries> series;
  std::map<std::string, std::size_t> index;
  for (const Record& r : records) {
    if (r.x <= 0) continue;
    const auto [place, added] = index.emplace(r.series, series.size());
    if (added) series.push_back({r.series, {}, {}});
    series[place->second].x.push_back(r.x);
    series[place->second].y.push_back(value(r));
  }
  return line_plot(series, options);
}

std::string bar_plot_of(const Json& plot) {
  const auto text = [&](const char* key) {
    const Json* value = plot.find(key);
    return value != nullptr ? value->as_string() : std::string();
  };
  PlotOptions options;
  options.title = plot.at("title").as_string();
  options.subtitle = text("subtitle");
  options.y_label = text("y_label");
  if (const Json* references = plot.find("references")) {
    for (const Json& r : references->as_array())
      options.references.push_back({r.at("name").as_string(), r.at("y").as_double()});
  }
  std::vector<std::string> categories;
  for (const Json& name : plot.at("categories").as_array()) categories.push_back(name.as_string());
  std::vector<PlotSeries> series;
  for (const Json& item : plot.at("series").as_array()) {
    series.push_back({item.at("name").as_string(), {}, {}});
    for (const Json& y : item.at("y").as_array()) series.back().y.push_back(y.as_double());
  }
  return bar_plot(categories, series, options);
}

Json machine_json() {
  Json out = Json::object();
  out["processor"] = cpu_features().model;
  out["isa"] = isa_name(active_isa());
  out["threads"] = num_threads();
  out["version"] = version();
  return out;
}

Json suite_json(const Suite& suite, std::span<const Record> records) {
  Json out = Json::object();
  out["benchmark"] = suite.name;
  out["machine"] = machine_json();
  Json list = Json::array();
  for (const Record& r : records) list.push_back(r.to_json());
  out["records"] = std::move(list);
  return out;
}

}  // namespace qkv::inline v0::bench
