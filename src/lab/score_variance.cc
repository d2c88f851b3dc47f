// score-variance: how widely dot products of random vectors spread.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "qkv/attention.h"

#include "lab/draw.h"
#include "lab/lab.h"
#include "lab/plot.h"

namespace qkv::inline v0::lab {

namespace {

constexpr double kTolerance = 0.05;

// Variance of scale * q.k over all pairs. With a single key, attention's log-sum-exp is the score
// itself.
double score_variance(const ops::AttentionInput& input, double scale) {
  ops::AttentionOptions options;
  options.scale = scale;
  const Tensor scores = ops::attention(input, options).lse;
  const float* s = scores.data<float>();
  const std::int64_t samples = scores.numel();
  double sum = 0, squares = 0;
  for (std::int64_t i = 0; i < samples; ++i) {
    sum += s[i];
    squares += static_cast<double>(s[i]) * s[i];
  }
  const double n = static_cast<double>(samples), mean = sum / n;
  return (squares - n * mean * mean) / (n - 1);
}

}  // namespace

Result run_score_variance(const Options& options) {
  const std::int64_t samples = options.full ? 100000 : 20000;
  Result result;
  result.table.columns = {"d_k", "variance of q.k", "variance / d_k",
                          "after dividing by sqrt(d_k)"};
  result.measured = Json::object();
  result.measured["samples"] = samples;
  Json rows = Json::array();
  double worst = 0;
  LineChart chart{"variance of a dot product", "d_k", "variance", true, true, {}};
  chart.lines = {{"q.k", {}}, {"q.k / sqrt(d_k)", {}}};
  for (const std::int64_t width : {8, 16, 64, 128, 512}) {
    const auto d = static_cast<double>(width);
    Random random(options.seed, static_cast<std::uint64_t>(width));
    ops::AttentionInput input;
    input.q = normal_tensor(random, {samples, 1, 1, width});
    input.k = normal_tensor(random, {samples, 1, 1, width});
    input.v = Tensor::zeros({samples, 1, 1, 1});
    const double raw = score_variance(input, 1);
    const double scaled = score_variance(input, 1 / std::sqrt(d));
    worst = std::max({worst, std::abs(raw / d - 1), std::abs(scaled - 1)});
    result.table.rows.push_back({fmt::format("{}", width), fmt::format("{:.2f}", raw),
                                 fmt::format("{:.4f}", raw / d), fmt::format("{:.4f}", scaled)});
    Json row = Json::object();
    row["d_k"] = width;
    row["variance"] = raw;
    row["variance_over_d_k"] = raw / d;
    row["variance_scaled"] = scaled;
    rows.push_back(std::move(row));
    chart.lines[0].points.emplace_back(d, raw);
    chart.lines[1].points.emplace_back(d, scaled);
  }
  result.measured["rows"] = std::move(rows);
  result.measured["largest_deviation"] = worst;
  result.holds = worst <= kTolerance ? Holds::kTrue : Holds::kFalse;
  result.verdict = fmt::format(
      "over {} pairs per width the variances are within {:.1f} % of d_k, and of 1 once scaled",
      samples, 100 * worst);
  result.pictures = {{"score-variance.svg", line_chart(chart)}};
  return result;
}

}  // namespace qkv::inline v0::lab
