#include "lab/plot.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "base/markup.h"

namespace qkv::inline v0::lab {

namespace {

constexpr std::array kColours{"#2563eb", "#d97706", "#059669", "#dc2626", "#7c3aed", "#0891b2"};
constexpr double kWidth = 640, kHeight = 400, kLeft = 70, kRight = 20, kTop = 40, kBottom = 50;

// One axis: data to pixels, and its ticks.
class Axis {
 public:
  Axis(bool log, double from, double to) : log_(log), from_(from), to_(to) {}
  bool shows(double v) const { return std::isfinite(v) && (!log_ || v > 0); }
  void extend(double v) {
    if (!shows(v)) return;
    low_ = std::min(low_, at(v));
    high_ = std::max(high_, at(v));
  }
  void settle() {
    if (!(low_ <= high_)) low_ = 0, high_ = 1;
    if (high_ - low_ < 1e-12) low_ -= 0.5, high_ += 0.5;
  }
  double pixel(double v) const { return from_ + (at(v) - low_) / (high_ - low_) * (to_ - from_); }
  std::vector<double> ticks() const {
    std::vector<double> values;
    const double span = high_ - low_;
    if (log_) {
      const double step = std::max(1.0, std::ceil(span / 6));
      for (double e = std::ceil(low_ - 1e-9); e <= high_ + 1e-9; e += step)
        values.push_back(std::pow(10.0, e));
      if (values.size() >= 2) return values;
      return {std::pow(10.0, low_), std::pow(10.0, high_)};
    }
    const double raw = span / 5, power = std::pow(10.0, std::floor(std::log10(raw)));
    const double digit = raw / power;
    const double step = power * (digit < 1.5 ? 1 : digit < 3.5 ? 2 : digit < 7.5 ? 5 : 10);
    for (double v = std::ceil(low_ / step) * step; v <= high_ + step * 1e-9; v += step)
      values.push_back(std::abs(v) < step * 1e-9 ? 0 : v);
    return values;
  }

 private:
  double at(double v) const { return log_ ? std::log10(v) : v; }
  bool log_;
  double from_, to_;
  double low_ = std::numeric_limits<double>::infinity(), high_ = -low_;
};

std::string open_svg(double width, double height, const std::string& title) {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
      "height=\"{1:.0f}\" font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" "
      "height=\"100%\" fill=\"white\"/>\n<text x=\"{2:.0f}\" y=\"22\" font-size=\"14\" "
      "font-weight=\"bold\">{3}</text>\n",
      width, height, kLeft / 2, escape_markup(title));
}

std::string axes(const LineChart& chart, const Axis& x, const Axis& y) {
  const double bottom = kHeight - kBottom, right = kWidth - kRight;
  std::string svg = fmt::format("<path d=\"M{0} {1}V{2}H{3}\" fill=\"none\" stroke=\"#444\"/>\n",
                                kLeft, kTop, bottom, right);
  for (const double v : x.ticks()) {
    svg += fmt::format(
        "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\" fill=\"#444\">{:.4g}</text>\n",
        x.pixel(v), bottom + 16, v);
  }
  for (const double v : y.ticks()) {
    svg += fmt::format(
        "<path d=\"M{0} {1:.1f}H{2}\" stroke=\"#ddd\"/><text x=\"{3}\" y=\"{4:.1f}\" "
        "text-anchor=\"end\" fill=\"#444\">{5:.4g}</text>\n",
        kLeft, y.pixel(v), right, kLeft - 6, y.pixel(v) + 4, v);
  }
  svg += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n",
                     (kLeft + right) / 2, kHeight - 12, escape_markup(chart.x_label));
  svg += fmt::format(
      "<text transform=\"translate(16 {}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
      (kTop + bottom) / 2, escape_markup(chart.y_label));
  return svg;
}

std::string heat_map(const HeatMap& map, double left, double top, double cell) {
  const std::size_t n = map.rows.size(), s = map.columns.size();
  const float largest = std::max(1e-12f, *std::max_element(map.values.begin(), map.values.end()));
  const auto weight = [&](std::size_t i) {
    return std::find(map.marked.begin(), map.marked.end(), i) == map.marked.end() ? "normal"
                                                                                  : "bold";
  };
  std::string svg = fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" font-weight=\"bold\">{}</text>\n",
                                left, top - 56, escape_markup(map.title));
  for (std::size_t j = 0; j < s; ++j) {
    // Names wider than a cell lean, so that they do not run into each other.
    constexpr std::size_t kBytesOfOneCharacter = 3;
    const bool leans = map.columns[j].size() > kBytesOfOneCharacter;
    svg += fmt::format(
        "<text transform=\"translate({:.1f} {:.1f}){}\" text-anchor=\"{}\" "
        "font-weight=\"{}\">{}</text>\n",
        left + (static_cast<double>(j) + 0.5) * cell, top - 6, leans ? " rotate(-45)" : "",
        leans ? "start" : "middle", weight(j), escape_markup(map.columns[j]));
  }
  for (std::size_t i = 0; i < n; ++i) {
    const double y = top + static_cast<double>(i) * cell;
    svg += fmt::format(
        "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\" font-weight=\"{}\">{}</text>\n",
        left - 5, y + cell * 0.7, weight(i), escape_markup(map.rows[i]));
    for (std::size_t j = 0; j < s; ++j) {
      const float v = map.values[i * s + j];
      svg += fmt::format(
          "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"#1d4ed8\" "
          "fill-opacity=\"{:.3f}\"><title>{} to {}: {:.4f}</title></rect>\n",
          left + static_cast<double>(j) * cell, y, cell - 1, cell - 1, v / largest,
          escape_markup(map.rows[i]), escape_markup(map.columns[j]), v);
    }
  }
  return svg;
}

}  // namespace

std::string line_chart(const LineChart& chart) {
  Axis x(chart.log_x, kLeft, kWidth - kRight), y(chart.log_y, kHeight - kBottom, kTop);
  for (const Line& line : chart.lines) {
    for (const auto& [a, b] : line.points) {
      x.extend(a);
      y.extend(b);
    }
  }
  x.settle();
  y.settle();
  std::string svg = open_svg(kWidth, kHeight, chart.title) + axes(chart, x, y);
  for (std::size_t i = 0; i < chart.lines.size(); ++i) {
    const char* colour = kColours[i % kColours.size()];
    std::string path, dots;
    for (const auto& [a, b] : chart.lines[i].points) {
      if (!x.shows(a) || !y.shows(b)) continue;
      path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", x.pixel(a), y.pixel(b));
      dots += fmt::format(
          "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"><title>{:.6g}, "
          "{:.6g}</title></circle>\n",
          x.pixel(a), y.pixel(b), colour, a, b);
    }
    svg += fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>\n{}", path,
                       colour, dots);
    svg += fmt::format("<text x=\"{}\" y=\"{}\" fill=\"{}\">{}</text>\n", kLeft + 12,
                       kTop + 14 + 16 * static_cast<double>(i), colour,
                       escape_markup(chart.lines[i].name));
  }
  return svg + "</svg>\n";
}

std::string heat_maps(const std::string& title, const std::vector<HeatMap>& maps) {
  constexpr double kCell = 22, kGap = 80, kHead = 100;
  double width = kGap, height = 0;
  for (const HeatMap& map : maps) {
    width += static_cast<double>(map.columns.size()) * kCell + kGap;
    height = std::max(height, static_cast<double>(map.rows.size()) * kCell);
  }
  std::string svg = open_svg(width, height + kHead + 20, title);
  double left = kGap;
  for (const HeatMap& map : maps) {
    svg += heat_map(map, left, kHead, kCell);
    left += static_cast<double>(map.columns.size()) * kCell + kGap;
  }
  return svg + "</svg>\n";
}

}  // namespace qkv::inline v0::lab
