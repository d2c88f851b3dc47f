#include "bench/measure.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace qkv::inline v0::bench {
namespace {

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

constexpr double kCalm = 0.93;

struct Try {
  double rate = 0, calm = 0;
};
Try try_once(Probe& probe) {
  const double rate = probe.once();
  return {rate, probe.saw(probe.calm(rate))};
}

struct Run {
  double seconds = 0, peak = 0, calm = 0;  // the lower ones of the two tries around it
};

std::string shown_seconds(double s) {
  if (s < 1e-3) return fmt::format("{:.1f} us", s * 1e6);
  if (s < 1) return fmt::format("{:.2f} ms", s * 1e3);
  return fmt::format("{:.2f} s", s);
}

}  // namespace

Measurement measure(FunctionRef<void()> body, Probe& probe, const MeasureOptions& options) {
  const double start = options.clock();
  body();
  const double first = options.clock() - start;
  const bool is_short = first < 1e-3, is_cheap = first < 0.05;
  const int repeats =
      is_short ? static_cast<int>(std::clamp(1e-3 / std::max(1e-7, first), 1.0, 1000.0)) : 1;
  std::vector<Run> runs;
  const auto calm_runs = [&] {
    return std::count_if(runs.begin(), runs.end(),
                         [&](const Run& r) { return r.calm >= kCalm * probe.calmest(); });
  };
  const auto goes_on = [&](double spent) {
    const int count = static_cast<int>(runs.size());
    if (count < options.min_runs) return true;
    if (spent < options.seconds && count < options.max_runs) return true;
    return spent < options.patience && calm_runs() < options.min_runs;
  };
  Try before = try_once(probe);
  double spent = 0;
  while (goes_on(spent)) {
    if (is_cheap) body();  // the probe took the caches, and warms its own arrays likewise
    const double begin = options.clock();
    for (int i = 0; i < repeats; ++i) body();
    const double seconds = options.clock() - begin;
    const Try after = try_once(probe);
    runs.push_back(
        {seconds / repeats, std::min(before.rate, after.rate), std::min(before.calm, after.calm)});
    before = after;
    spent += seconds;
  }
  std::sort(runs.begin(), runs.end(), [](const Run& a, const Run& b) { return a.calm > b.calm; });
  const std::size_t good =
      std::max<std::size_t>({static_cast<std::size_t>(calm_runs()), (runs.size() + 2) / 3,
                             std::min<std::size_t>(3, runs.size())});
  std::vector<double> seconds, peaks;
  for (std::size_t i = 0; i < good; ++i) {
    seconds.push_back(runs[i].seconds);
    peaks.push_back(runs[i].peak);
  }
  return {median(seconds), median(peaks), static_cast<int>(runs.size()),
          static_cast<int>(runs.size() - good)};
}

double Record::shown_rate() const { return unit[0] == 'G' ? rate() / 1e9 : rate(); }

Json Record::to_json() const {
  Json out = Json::object();
  out["name"] = name;
  out["seconds"] = seconds;
  out["gflops"] = unit == "GFLOP/s" ? Json(shown_rate()) : Json();
  out["peak_share"] = peak_share > 0 ? Json(peak_share) : Json();
  out["rate"] = shown_rate();
  out["unit"] = unit;
  if (!limit.empty()) out["limit"] = limit;
  out["runs"] = runs;
  out["dropped"] = dropped;
  for (const auto& [key, value] : more.as_object()) out[key] = value;
  return out;
}

std::string table_head() {
  return fmt::format("{:<52} {:>11} {:>19} {:>9}", "benchmark", "median", "rate", "of peak");
}

std::string table_line(const Record& record) {
  const std::string rate = record.shown_rate() >= 1000 ? fmt::format("{:.0f}", record.shown_rate())
                                                       : fmt::format("{:.1f}", record.shown_rate());
  return fmt::format(
             "{:<52} {:>11} {:>19} {:>9}", record.name, shown_seconds(record.seconds),
             rate + " " + record.unit,
             record.peak_share > 0 ? fmt::format("{:.0f} %", 100 * record.peak_share) : "") +
         (record.limit.empty() ? "" : "  " + record.limit);
}

}  // namespace qkv::inline v0::bench
