// Timing beside a probe, and what comes out of it.
#pragma once

#include <string>
#include <vector>

#include "base/function_ref.h"
#include "base/json.h"
#include "bench/probe.h"

namespace qkv::inline v0::bench {

struct MeasureOptions {
  double seconds = 0.25;  // to spend on the body, probes not counted
  double patience = 5;    // seconds, at most, until min_runs of them count
  int min_runs = 9, max_runs = 200;
  double (*clock)() = now;  // seconds
};

struct Measurement {
  double seconds = 0;  // median of one call of the body
  double peak = 0;     // median of the probe beside them, units per second
  int runs = 0;        // timed
  int dropped = 0;     // of these, left out of the medians: the machine was busy beside them
};

// Shared machines change speed within seconds. So each run stands between two short tries of the
// probe, and counts only if the machine was calm beside both: 93 % of the calmest try that this
// probe has seen (or, if fewer than three are, the third of the runs with the calmest tries). Where
// few count, the measurement goes on for a while. Short bodies are repeated within a run to fill a
// millisecond. The body is called once before, and, where that takes less than 50 ms, once before
// each run.
Measurement measure(FunctionRef<void()> body, Probe& probe, const MeasureOptions& options = {});

// One line of a benchmark's output.
struct Record {
  std::string name;       // "linear/M=1024 K=256 N=768"
  double seconds = 0;     // median
  double work = 0;        // operations, bytes or items of one run
  std::string unit;       // of work / seconds / scale: "GFLOP/s", "GB/s", "tokens/s"
  double peak_share = 0;  // of the probe's rate; 0: there is no meaningful peak
  std::string limit;      // what the peak is, where it is not the same for the whole suite
  int runs = 0, dropped = 0;
  std::string series;          // for the plot: lines of the same series are joined
  std::string category;        // for plots with bars
  double x = 0;                // for the plot; 0: categories
  Json more = Json::object();  // further keys of the JSON object

  double rate() const { return seconds > 0 ? work / seconds : 0; }
  double shown_rate() const;  // in `unit`
  // name, seconds, gflops (null where the work is no arithmetic), peak_share (null where there is
  // none), then the rest.
  Json to_json() const;
};

// "name  time  rate  share" in fixed columns.
std::string table_head();
std::string table_line(const Record& record);

}  // namespace qkv::inline v0::bench
