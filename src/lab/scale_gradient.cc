// scale-gradient: what leaving out 1/sqrt(d_k) does to the weights and to the queries' gradient.
#include <algorithm>
#include <cmath>
#include <vector>

#include <fmt/format.h>

#include "qkv/attention.h"

#include "lab/draw.h"
#include "lab/lab.h"
#include "lab/plot.h"

namespace qkv::inline v0::lab {

namespace {

constexpr double kReported = 81;     // the factor of the claim
constexpr double kDeadShare = 1e-3;  // a row below this part of the scaled median is dead

struct Side {
  std::vector<double> row_norms;    // of dL/dQ
  double norm = 0;                  // of all of dL/dQ
  double entropy = 0, largest = 0;  // means over rows
};

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

Side measure(const ops::AttentionInput& input, const Tensor& dout, double scale) {
  ops::AttentionOptions options;
  options.scale = scale;
  options.return_weights = true;
  const ops::AttentionResult result = ops::attention(input, options);
  const ops::AttentionGradients gradients{Tensor::empty(input.q.shape()),
                                          Tensor::empty(input.k.shape()),
                                          Tensor::empty(input.v.shape())};
  ops::attention_backward(dout, input, result, options, gradients);
  const std::int64_t rows = input.q.dim(1), width = input.q.dim(3), keys = input.k.dim(1);
  const float* dq = gradients.dq.data<float>();
  const float* w = result.weights.data<float>();
  Side side;
  double squares = 0;
  for (std::int64_t i = 0; i < rows; ++i) {
    double row = 0;
    for (std::int64_t c = 0; c < width; ++c)
      row += static_cast<double>(dq[i * width + c]) * dq[i * width + c];
    squares += row;
    side.row_norms.push_back(std::sqrt(row));
    float largest = 0;
    for (std::int64_t j = 0; j < keys; ++j) {
      const float p = w[i * keys + j];
      largest = std::max(largest, p);
      if (p > 0) side.entropy -= static_cast<double>(p) * std::log(p);
    }
    side.largest += largest;
  }
  side.norm = std::sqrt(squares);
  side.entropy /= static_cast<double>(rows);
  side.largest /= static_cast<double>(rows);
  return side;
}

}  // namespace

Result run_scale_gradient(const Options& options) {
  const std::int64_t keys = 512, queries = options.full ? 512 : 128;
  Result result;
  result.table.columns = {
      "d_k",          "gradient, without / with", "same, factor divided out", "dead without",
      "entropy with", "entropy without",          "largest weight with",      "largest without"};
  Json rows = Json::array();
  double ratio_64 = 0, largest_64 = 0, dead_64 = 0, dead_512 = 0;
  LineChart chart{"gradient of the queries without the scale, relative to with it",
                  "d_k",
                  "ratio",
                  true,
                  true,
                  {{"norm of dL/dQ", {}}, {"median row", {}}}};
  for (std::int64_t width = 8; width <= 4096; width *= 2) {
    Random random(options.seed, static_cast<std::uint64_t>(width));
    const ops::AttentionInput input = normal_attention(random, queries, keys, width);
    const Tensor dout = normal_tensor(random, {1, queries, 1, width});
    const double root = std::sqrt(static_cast<double>(width));
    const Side with = measure(input, dout, 1 / root), without = measure(input, dout, 1);
    const double middle = median(with.row_norms);
    const auto dead =
        static_cast<double>(std::count_if(without.row_norms.begin(), without.row_norms.end(),
                                          [&](double norm) { return norm < kDeadShare * middle; }));
    const double dead_share = dead / static_cast<double>(queries);
    const double ratio = without.norm / with.norm,
                 median_ratio = median(without.row_norms) / middle;
    if (width == 64) ratio_64 = ratio, largest_64 = without.largest, dead_64 = dead_share;
    if (width == 512) dead_512 = dead_share;
    result.table.rows.push_back(
        {fmt::format("{}", width), fmt::format("{:.3g}", ratio),
         fmt::format("{:.3g}", ratio / root), fmt::format("{:.1f} %", 100 * dead_share),
         fmt::format("{:.2f}", with.entropy), fmt::format("{:.2f}", without.entropy),
         fmt::format("{:.3f}", with.largest), fmt::format("{:.3f}", without.largest)});
    Json row = Json::object();
    row["d_k"] = width;
    row["gradient_ratio"] = ratio;
    row["gradient_ratio_factor_divided_out"] = ratio / root;
    row["median_row_scaled"] = middle;
    row["median_row_unscaled"] = median(without.row_norms);
    row["dead_rows_unscaled"] = dead_share;
    row["entropy_scaled"] = with.entropy;
    row["entropy_unscaled"] = without.entropy;
    row["largest_weight_scaled"] = with.largest;
    row["largest_weight_unscaled"] = without.largest;
    rows.push_back(std::move(row));
    chart.lines[0].points.emplace_back(width, ratio);
    chart.lines[1].points.emplace_back(width, median_ratio);
  }
  result.measured = Json::object();
  result.measured["length"] = keys;
  result.measured["gradient_ratio_at_64"] = ratio_64;
  result.measured["largest_weight_at_64"] = largest_64;
  result.measured["dead_rows_at_64"] = dead_64;
  result.measured["dead_rows_at_512"] = dead_512;
  result.measured["rows"] = std::move(rows);
  result.holds = ratio_64 <= 1 / kReported ? Holds::kTrue : Holds::kFalse;
  result.verdict = fmt::format(
      "at d_k = 64 and {} keys the gradient without scale is {:.1f} times that with it and the "
      "largest weight {:.2f} on average, with {:.1f} % of the rows dead; at d_k = 512 {:.1f} % are",
      keys, ratio_64, largest_64, 100 * dead_64, 100 * dead_512);
  result.pictures = {{"scale-gradient.svg", line_chart(chart)}};
  return result;
}

}  // namespace qkv::inline v0::lab
