// position-shift: which functions of two sinusoidal codes depend on their distance alone.
#include <algorithm>
#include <cmath>
#include <vector>

#include <fmt/format.h>

#include "lab/lab.h"
#include "lab/plot.h"
#include "ops/embedding.h"

namespace qkv::inline v0::lab {

namespace {

constexpr std::int64_t kWidth = 512, kDistance = 5;

std::vector<double> difference(const Tensor& table, std::int64_t at) {
  const double* row = table.data<double>() + at * kWidth;
  std::vector<double> d(kWidth);
  for (std::size_t c = 0; c < d.size(); ++c)
    d[c] = row[static_cast<std::size_t>(kDistance * kWidth) + c] - row[c];
  return d;
}

double dot(const double* a, const double* b) {
  double sum = 0;
  for (std::int64_t c = 0; c < kWidth; ++c) sum += a[c] * b[c];
  return sum;
}

}  // namespace

Result run_position_shift(const Options&) {
  const std::vector<std::int64_t> starts = {0, 1, 10, 100, 1000, 4000};
  const Tensor table =
      ops::sinusoidal_table(starts.back() + kDistance + 1, kWidth, DType::kFloat64);
  const std::vector<double> base = difference(table, 100);
  const double base_norm = std::sqrt(dot(base.data(), base.data()));
  Result result;
  result.table.columns = {"pair", "cosine of its difference to that of (100, 105)",
                          "norm of the difference", "inner product"};
  Json rows = Json::array();
  double cosine_1000 = 0, norm_spread = 0, product_spread = 0, norm_first = 0, product_first = 0;
  LineChart chart{"difference of two codes, 5 positions apart",
                  "first position + 1",
                  "value",
                  true,
                  false,
                  {{"cosine to the difference at 100", {}}, {"norm / norm at 0", {}}}};
  for (const std::int64_t start : starts) {
    const std::vector<double> d = difference(table, start);
    const double* row = table.data<double>() + start * kWidth;
    const double norm = std::sqrt(dot(d.data(), d.data()));
    const double cosine = dot(d.data(), base.data()) / (norm * base_norm);
    const double product = dot(row, row + kDistance * kWidth);
    if (start == starts.front()) norm_first = norm, product_first = product;
    if (start == 1000) cosine_1000 = cosine;
    norm_spread = std::max(norm_spread, std::abs(norm - norm_first));
    product_spread = std::max(product_spread, std::abs(product - product_first));
    result.table.rows.push_back({fmt::format("({}, {})", start, start + kDistance),
                                 fmt::format("{:.3f}", cosine), fmt::format("{:.4f}", norm),
                                 fmt::format("{:.3f}", product)});
    Json figures = Json::object();
    figures["start"] = start;
    figures["cosine"] = cosine;
    figures["norm"] = norm;
    figures["inner_product"] = product;
    rows.push_back(std::move(figures));
    chart.lines[0].points.emplace_back(start + 1, cosine);
    chart.lines[1].points.emplace_back(start + 1, norm / norm_first);
  }
  result.measured = Json::object();
  result.measured["width"] = kWidth;
  result.measured["distance"] = kDistance;
  result.measured["cosine_100_1000"] = cosine_1000;
  result.measured["norm"] = norm_first;
  result.measured["inner_product"] = product_first;
  result.measured["norm_spread"] = norm_spread;
  result.measured["inner_product_spread"] = product_spread;
  result.measured["rows"] = std::move(rows);
  result.holds = cosine_1000 > 0.999 ? Holds::kTrue : Holds::kFalse;
  result.verdict = fmt::format(
      "the difference vectors of (100, 105) and (1000, 1005) at width {} have cosine {:.3f}; what "
      "depends on the distance alone is their norm ({:.4f}) and the inner product ({:.3f})",
      kWidth, cosine_1000, norm_first, product_first);
  result.pictures = {{"position-shift.svg", line_chart(chart)}};
  return result;
}

}  // namespace qkv::inline v0::lab
