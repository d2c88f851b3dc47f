// flash-memory: peak bytes and time of attention with the whole score matrix and with tiles.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "qkv/attention.h"

#include "base/memory.h"
#include "base/thread_pool.h"
#include "lab/draw.h"
#include "lab/lab.h"
#include "lab/plot.h"

namespace qkv::inline v0::lab {

namespace {

constexpr std::int64_t kWidth = 64;

struct Cost {
  double bytes = 0, seconds = 0;
  Tensor out;
};

// One thread while it lives: each thread that takes part has scratch of its own, and which of them
// do is a matter of chance.
class OneThread {
 public:
  OneThread() { set_num_threads(1); }
  ~OneThread() { set_num_threads(previous_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int previous_ = num_threads();
};

ops::AttentionInput random_input(std::uint64_t seed, std::int64_t length) {
  Random random(seed, static_cast<std::uint64_t>(length));
  return normal_attention(random, length, length, kWidth);
}

// Bytes beyond the input, from the account of all tensors and workspaces.
Cost cost_of(const ops::AttentionInput& input, bool naive) {
  ops::AttentionOptions options;
  options.backend = naive ? ops::AttentionBackend::kNaive : ops::AttentionBackend::kFlash;
  options.return_weights = naive;  // the whole matrix, as textbook code holds it
  release_cached_memory();
  reset_memory_peaks();
  const std::size_t before = memory_use().live;
  const auto start = std::chrono::steady_clock::now();
  Cost cost;
  cost.out = ops::attention(input, options).out;
  cost.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  cost.bytes = static_cast<double>(memory_use().peak - before);
  return cost;
}

// Slope of log bytes over log n by least squares.
double exponent(const std::vector<std::pair<double, double>>& points) {
  double x = 0, y = 0, xx = 0, xy = 0;
  for (const auto& [n, bytes] : points) {
    const double a = std::log(n), b = std::log(bytes);
    x += a, y += b, xx += a * a, xy += a * b;
  }
  const auto count = static_cast<double>(points.size());
  return (count * xy - x * y) / (count * xx - x * x);
}

double largest_difference(const Tensor& a, const Tensor& b) {
  double largest = 0;
  for (std::int64_t i = 0; i < a.numel(); ++i)
    largest =
        std::max(largest, std::abs(static_cast<double>(a.data<float>()[i]) - b.data<float>()[i]));
  return largest;
}

}  // namespace

Result run_flash_memory(const Options& options) {
  const OneThread alone;
  const std::int64_t naive_limit = options.full ? 8192 : 2048;
  Result result;
  result.table.columns = {"n",        "naive MiB", "flash MiB",
                          "naive ms", "flash ms",  "largest difference"};
  Json rows = Json::array();
  LineChart chart{"memory of one attention head beyond its input (d = 64, one thread)",
                  "n",
                  "MiB",
                  true,
                  true,
                  {{"whole matrix", {}}, {"tiles", {}}}};
  std::vector<std::pair<double, double>> naive_points, flash_points;
  double worst = 0;
  for (std::int64_t n = 256; n <= 16384; n *= 2) {
    const ops::AttentionInput input = random_input(options.seed, n);
    const Cost flash = cost_of(input, false);
    constexpr double kMiB = 1 << 20;
    Json row = Json::object();
    row["n"] = n;
    row["flash_bytes"] = flash.bytes;
    row["flash_seconds"] = flash.seconds;
    flash_points.emplace_back(n, flash.bytes);
    chart.lines[1].points.emplace_back(n, flash.bytes / kMiB);
    std::vector<std::string> cells{fmt::format("{}", n),
                                   "-",
                                   fmt::format("{:.2f}", flash.bytes / kMiB),
                                   "-",
                                   fmt::format("{:.1f}", 1e3 * flash.seconds),
                                   "-"};
    if (n <= naive_limit) {
      const Cost naive = cost_of(input, true);
      const double difference = largest_difference(naive.out, flash.out);
      worst = std::max(worst, difference);
      row["naive_bytes"] = naive.bytes;
      row["naive_seconds"] = naive.seconds;
      row["largest_difference"] = difference;
      naive_points.emplace_back(n, naive.bytes);
      chart.lines[0].points.emplace_back(n, naive.bytes / kMiB);
      cells[1] = fmt::format("{:.2f}", naive.bytes / kMiB);
      cells[3] = fmt::format("{:.1f}", 1e3 * naive.seconds);
      cells[5] = fmt::format("{:.1e}", difference);
    }
    result.table.rows.push_back(std::move(cells));
    rows.push_back(std::move(row));
  }
  const double naive_exponent = exponent(naive_points), flash_exponent = exponent(flash_points);
  result.measured = Json::object();
  result.measured["naive_exponent"] = naive_exponent;
  result.measured["flash_exponent"] = flash_exponent;
  result.measured["largest_difference"] = worst;
  result.measured["rows"] = std::move(rows);
  const bool shapes = naive_exponent > 1.8 && naive_exponent < 2.2 && flash_exponent < 1.2;
  result.holds = shapes && worst < 1e-5 ? Holds::kTrue : Holds::kFalse;
  result.verdict = fmt::format(
      "memory grows as n^{:.2f} with the whole matrix and as n^{:.2f} with tiles, and the outputs "
      "differ by at most {:.1e}",
      naive_exponent, flash_exponent, worst);
  result.pictures = {{"flash-memory.svg", line_chart(chart)}};
  return result;
}

}  // namespace qkv::inline v0::lab
