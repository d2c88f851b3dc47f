#include "bench/svg_plot.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <set>

#include <fmt/format.h>

#include "qkv/error.h"

#include "base/check.h"
#include "base/markup.h"

namespace qkv::inline v0::bench {
namespace {

constexpr double kLeft = 76, kRight = 24, kBottom = 62;
constexpr int kColours = 7;
constexpr double kLetter = 7.4;  // width of a letter, more or less

constexpr const char* kStyle = R"(<style>
svg{--ink:#1c2024;--soft:#60666d;--grid:#e3e6ea;--paper:#ffffff;
--c0:#0072b2;--c1:#d55e00;--c2:#009e73;--c3:#b5578f;--c4:#8a6d00;--c5:#3d8fc4;--c6:#5f6a72}
@media (prefers-color-scheme:dark){svg{--ink:#e8eaed;--soft:#a2a9b1;--grid:#33383e;--paper:#16191d;
--c0:#56b4e9;--c1:#ff9248;--c2:#35d0a2;--c3:#e39ccb;--c4:#e6c84f;--c5:#9ad1f5;--c6:#b4bcc4}}
text{font:13px system-ui,sans-serif;fill:var(--ink)}.t{font-size:17px;font-weight:600}.s{fill:var(--soft)}
.g{stroke:var(--grid);stroke-width:1}.a{stroke:var(--soft);stroke-width:1}.r{stroke:var(--ink);stroke-width:1.5;stroke-dasharray:6 4}
.l{fill:none;stroke-width:2.2;stroke-linejoin:round}
</style>
)";

// A value axis: data range to pixels, with the places of its ticks.
struct Axis {
  double low = 0, high = 1;
  bool log = false;
  double from = 0, to = 1;  // pixels
  std::vector<double> ticks;

  double scaled(double v) const { return log ? std::log10(v) : v; }
  double operator()(double v) const {
    return from + (scaled(v) - scaled(low)) / (scaled(high) - scaled(low)) * (to - from);
  }
};

std::string number(double v) {
  const double a = std::abs(v);
  if (a != 0 && (a >= 1e6 || a < 1e-3)) return fmt::format("{:.3g}", v);
  if (a >= 1000 && v == std::floor(v)) return fmt::format("{:.0f}", v);
  return fmt::format("{:.4g}", v);
}

// A step of 1, 2 or 5 times a power of ten that cuts `range` into four to eight.
double nice_step(double range) {
  const double raw = range / 6, power = std::pow(10, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= raw) return factor * power;
  }
  return 10 * power;
}

void linear_axis(Axis& axis, double low, double high, bool from_zero) {
  if (from_zero) {
    low = std::min(low, 0.0);
    high = std::max(high, 0.0);
  }
  if (low == high) {
    low -= from_zero ? 0 : 0.5 * std::max(1e-12, std::abs(low));
    high += 0.5 * std::max(1e-12, std::abs(high)) + (high == 0 ? 1 : 0);
  }
  const double step = nice_step(high - low);
  axis.low = std::floor(low / step + 1e-9) * step;
  axis.high = std::ceil(high / step - 1e-9) * step;
  for (int i = 0; axis.low + i * step <= axis.high + step / 2; ++i) {
    const double tick = axis.low + i * step;
    axis.ticks.push_back(std::abs(tick) < step * 1e-9 ? 0 : tick);
  }
}

// Ticks at the data's own values while they are few, else at powers of ten.
void log_axis(Axis& axis, const std::set<double>& values) {
  axis.log = true;
  axis.low = *values.begin();
  axis.high = *values.rbegin();
  if (axis.low == axis.high) {
    axis.low /= 2;
    axis.high *= 2;
  }
  if (values.size() <= 12) {
    axis.ticks.assign(values.begin(), values.end());
    return;
  }
  axis.low = std::pow(10, std::floor(std::log10(axis.low)));
  axis.high = std::pow(10, std::ceil(std::log10(axis.high)));
  for (double tick = axis.low; tick <= axis.high * 1.001; tick *= 10) axis.ticks.push_back(tick);
}

void log_value_axis(Axis& axis, double low, double high) {
  axis.log = true;
  axis.low = std::pow(10, std::floor(std::log10(low)));
  axis.high = std::pow(10, std::ceil(std::log10(high)));
  if (axis.low == axis.high) axis.high *= 10;
  for (double tick = axis.low; tick <= axis.high * 1.001; tick *= 10) axis.ticks.push_back(tick);
}

double legend_rows(const std::vector<PlotSeries>& series, const PlotOptions& options) {
  double x = kLeft, rows = 1;
  for (const PlotSeries& s : series) {
    const double width = 34 + kLetter * static_cast<double>(s.name.size());
    if (x + width > options.width - kRight && x > kLeft) {
      x = kLeft;
      ++rows;
    }
    x += width;
  }
  return series.size() > 1 || !series[0].name.empty() ? rows : 0;
}

double plot_top(const std::vector<PlotSeries>& series, const PlotOptions& options) {
  return 40 + (options.subtitle.empty() ? 0 : 20) + 22 * legend_rows(series, options) + 10;
}

std::string marker(std::size_t series, double x, double y) {
  const std::string colour = fmt::format("var(--c{})", series % kColours);
  switch (series % 4) {
    case 0:
      return fmt::format(R"svg(<circle cx="{:.1f}" cy="{:.1f}" r="4" fill="{}"/>)svg", x, y,
                         colour);
    case 1:
      return fmt::format(
          R"svg(<rect x="{:.1f}" y="{:.1f}" width="7.4" height="7.4" fill="{}"/>)svg", x - 3.7,
          y - 3.7, colour);
    case 2:
      return fmt::format(R"svg(<path d="M{:.1f} {:.1f}l5 8.6h-10z" fill="{}"/>)svg", x, y - 5.2,
                         colour);
    default:
      return fmt::format(
          R"svg(<path d="M{:.1f} {:.1f}l5.2 5.2l-5.2 5.2l-5.2 -5.2z" fill="{}"/>)svg", x, y - 5.2,
          colour);
  }
}

// Title, subtitle and legend.
std::string head(const std::vector<PlotSeries>& series, const PlotOptions& options, bool bars) {
  std::string out = fmt::format(
      R"svg(<svg xmlns="http://www.w3.org/2000/svg" width="{0}" height="{1}" viewBox="0 0 {0} {1}" role="img">)svg",
      options.width, options.height);
  out += fmt::format("\n<title>{}</title>\n", escape_markup(options.title));
  out += kStyle;
  out += R"svg(<rect width="100%" height="100%" fill="var(--paper)"/>)svg"
         "\n";
  out += fmt::format(R"svg(<text class="t" x="{}" y="28">{}</text>)svg"
                     "\n",
                     kLeft, escape_markup(options.title));
  double y = 48;
  if (!options.subtitle.empty()) {
    out += fmt::format(R"svg(<text class="s" x="{}" y="{}">{}</text>)svg"
                       "\n",
                       kLeft, y, escape_markup(options.subtitle));
    y += 20;
  }
  if (legend_rows(series, options) == 0) return out;
  double x = kLeft;
  for (std::size_t i = 0; i < series.size(); ++i) {
    const double width = 34 + kLetter * static_cast<double>(series[i].name.size());
    if (x + width > options.width - kRight && x > kLeft) {
      x = kLeft;
      y += 22;
    }
    out +=
        bars
            ? fmt::format(
                  R"svg(<rect x="{:.1f}" y="{:.1f}" width="11" height="11" rx="2" fill="var(--c{})"/>)svg",
                  x, y - 4.5, i % kColours)
            : marker(i, x + 5, y + 1);
    out += fmt::format(R"svg(<text x="{:.1f}" y="{:.1f}">{}</text>)svg"
                       "\n",
                       x + 18, y + 5.5, escape_markup(series[i].name));
    x += width;
  }
  return out;
}

std::string axes(const Axis& y, const PlotOptions& options) {
  const double right = options.width - kRight;
  std::string out;
  for (const double tick : y.ticks) {
    out += fmt::format(
        R"svg(<line class="g" x1="{0}" x2="{1}" y1="{2:.1f}" y2="{2:.1f}"/><text class="s" x="{3}" y="{4:.1f}" text-anchor="end">{5}</text>)svg"
        "\n",
        kLeft, right, y(tick), kLeft - 9, y(tick) + 4.5, number(tick));
  }
  const double base = options.height - kBottom;
  out += fmt::format(R"svg(<line class="a" x1="{0}" x2="{1}" y1="{2:.1f}" y2="{2:.1f}"/>)svg"
                     "\n",
                     kLeft, right, base);
  const double middle = (y.from + y.to) / 2;
  out += fmt::format(
      R"svg(<text class="s" transform="translate(20 {:.1f}) rotate(-90)" text-anchor="middle">{}</text>)svg"
      "\n",
      middle, escape_markup(options.y_label));
  out += fmt::format(R"svg(<text class="s" x="{:.1f}" y="{}" text-anchor="middle">{}</text>)svg"
                     "\n",
                     (kLeft + right) / 2, options.height - 14, escape_markup(options.x_label));
  for (const PlotReference& r : options.references) {
    out += fmt::format(
        R"svg(<line class="r" x1="{0}" x2="{1}" y1="{2:.1f}" y2="{2:.1f}"/><text x="{1}" y="{3:.1f}" text-anchor="end">{4}</text>)svg"
        "\n",
        kLeft, right, y(r.y), y(r.y) - 6, escape_markup(r.name));
  }
  return out;
}

struct Range {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  void add(double v) {
    if (!std::isfinite(v)) return;
    low = std::min(low, v);
    high = std::max(high, v);
  }
};

Axis value_axis(const std::vector<PlotSeries>& series, const PlotOptions& options) {
  Range range;
  for (const PlotSeries& s : series) {
    for (const double v : s.y) range.add(v);
  }
  for (const PlotReference& r : options.references) range.add(r.y);
  require<ArgumentError>(range.low <= range.high, "plot",
                         "expected a finite value, got none in '{}'", options.title);
  require<ArgumentError>(!options.log_y || range.low > 0, "plot",
                         "expected positive values on a logarithmic axis, got {}", range.low);
  Axis axis;
  axis.from = options.height - kBottom;
  axis.to = plot_top(series, options);
  if (options.log_y) {
    log_value_axis(axis, range.low, range.high);
  } else {
    linear_axis(axis, range.low, range.high, options.from_zero);
  }
  return axis;
}

Axis argument_axis(const std::vector<PlotSeries>& series, const PlotOptions& options) {
  Range range;
  std::set<double> values;
  for (const PlotSeries& s : series) {
    require<ArgumentError>(s.x.size() == s.y.size(), "plot",
                           "expected {} x values for '{}', got {}", s.y.size(), s.name, s.x.size());
    for (const double v : s.x) {
      require<ArgumentError>(std::isfinite(v) && (!options.log_x || v > 0), "plot",
                             "expected finite x values, positive on a logarithmic axis, got {}", v);
      range.add(v);
      values.insert(v);
    }
  }
  Axis axis;
  axis.from = kLeft + 14;
  axis.to = options.width - kRight - 14;
  if (options.log_x) {
    log_axis(axis, values);
  } else {
    linear_axis(axis, range.low, range.high, false);
  }
  return axis;
}

std::string value_label(double x, double y, const char* anchor, double value) {
  return fmt::format(
      R"svg(<text x="{:.1f}" y="{:.1f}" text-anchor="{}" style="font-size:11px">{}</text>)svg"
      "\n",
      x, y, anchor, number(value >= 100 ? std::round(value) : value));
}

struct Bar {
  double x = 0, y = 0, width = 0, height = 0;
};
std::string bar_shape(const Bar& bar, std::size_t series, const std::string& name, double value) {
  return fmt::format(
      R"svg(<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" rx="2" fill="var(--c{})"><title>{}: {}</title></rect>)svg"
      "\n",
      bar.x, bar.y, bar.width, bar.height, series % kColours, escape_markup(name), number(value));
}

std::string standing_bars(const std::vector<std::string>& categories,
                          const std::vector<PlotSeries>& series, const PlotOptions& options) {
  const Axis y = value_axis(series, options);
  std::string out = head(series, options, /*bars=*/true) + axes(y, options);
  const double group = (options.width - kRight - kLeft) / static_cast<double>(categories.size());
  const double bar = std::min(64.0, 0.78 * group / static_cast<double>(series.size()));
  const double base = y(options.log_y ? y.low : 0);
  for (std::size_t c = 0; c < categories.size(); ++c) {
    const double middle = kLeft + group * (static_cast<double>(c) + 0.5);
    out +=
        fmt::format(R"svg(<text class="s" x="{:.1f}" y="{:.1f}" text-anchor="middle">{}</text>)svg"
                    "\n",
                    middle, options.height - kBottom + 18, escape_markup(categories[c]));
    for (std::size_t s = 0; s < series.size(); ++s) {
      const double value = series[s].y[c];
      if (!std::isfinite(value)) continue;
      const double left =
          middle + bar * (static_cast<double>(s) - static_cast<double>(series.size()) / 2);
      const double top = std::min(y(value), base), height = std::abs(y(value) - base);
      out += bar_shape({left + 1, top, bar - 2, height}, s, series[s].name, value);
      if (bar >= 26) out += value_label(left + bar / 2, top - 4, "middle", value);
    }
  }
  return out + "</svg>\n";
}

// For long names: they stand on the left, the bars lie, and the plot grows with their number.
std::string lying_bars(const std::vector<std::string>& categories,
                       const std::vector<PlotSeries>& series, const PlotOptions& wanted) {
  constexpr double kBar = 13, kGap = 9;
  PlotOptions options = wanted;
  const double group = kBar * static_cast<double>(series.size()) + kGap;
  const double top = plot_top(series, options) + 4;
  options.height = static_cast<int>(top + group * static_cast<double>(categories.size()) + kBottom);
  std::size_t longest = 0;
  for (const std::string& name : categories) longest = std::max(longest, name.size());
  const double left = std::min(0.5 * options.width, kLetter * static_cast<double>(longest) + 24);
  Axis x = value_axis(series, options);
  x.from = left;
  x.to = options.width - kRight - 40;
  std::string out = head(series, options, /*bars=*/true);
  const double bottom = options.height - kBottom;
  for (const double tick : x.ticks) {
    out += fmt::format(
        R"svg(<line class="g" x1="{0:.1f}" x2="{0:.1f}" y1="{1:.1f}" y2="{2:.1f}"/><text class="s" x="{0:.1f}" y="{3:.1f}" text-anchor="middle">{4}</text>)svg"
        "\n",
        x(tick), top, bottom, bottom + 18, number(tick));
  }
  for (const PlotReference& r : options.references) {
    out += fmt::format(
        R"svg(<line class="r" x1="{0:.1f}" x2="{0:.1f}" y1="{1:.1f}" y2="{2:.1f}"/><text x="{3:.1f}" y="{4:.1f}">{5}</text>)svg"
        "\n",
        x(r.y), top, bottom, x(r.y) + 5, top + 2, escape_markup(r.name));
  }
  out += fmt::format(R"svg(<text class="s" x="{:.1f}" y="{}" text-anchor="middle">{}</text>)svg"
                     "\n",
                     (x.from + x.to) / 2, options.height - 14, escape_markup(options.y_label));
  const double base = x(options.log_y ? x.low : 0);
  for (std::size_t c = 0; c < categories.size(); ++c) {
    const double start = top + group * static_cast<double>(c) + kGap / 2;
    out += fmt::format(R"svg(<text class="s" x="{:.1f}" y="{:.1f}" text-anchor="end">{}</text>)svg"
                       "\n",
                       left - 9, start + (group - kGap) / 2 + 4.5, escape_markup(categories[c]));
    for (std::size_t s = 0; s < series.size(); ++s) {
      const double value = series[s].y[c];
      if (!std::isfinite(value)) continue;
      const double y = start + kBar * static_cast<double>(s), end = x(value);
      out += bar_shape({std::min(base, end), y + 1, std::abs(end - base), kBar - 2}, s,
                       series[s].name, value);
      out += value_label(std::max(base, end) + 4, y + kBar - 3, "start", value);
    }
  }
  return out + "</svg>\n";
}

}  // namespace

std::string line_plot(const std::vector<PlotSeries>& series, const PlotOptions& options) {
  require<ArgumentError>(!series.empty(), "plot", "expected a series, got none in '{}'",
                         options.title);
  const Axis y = value_axis(series, options), x = argument_axis(series, options);
  std::string out = head(series, options, /*bars=*/false) + axes(y, options);
  for (const double tick : x.ticks) {
    out += fmt::format(R"svg(<text class="s" x="{:.1f}" y="{}" text-anchor="middle">{}</text>)svg"
                       "\n",
                       x(tick), options.height - kBottom + 20, number(tick));
  }
  for (std::size_t i = 0; i < series.size(); ++i) {
    std::string path, markers;
    bool pen = false;
    for (std::size_t p = 0; p < series[i].y.size(); ++p) {
      if (!std::isfinite(series[i].y[p])) {
        pen = false;
        continue;
      }
      const double px = x(series[i].x[p]), py = y(series[i].y[p]);
      path += fmt::format("{}{:.1f} {:.1f}", pen ? "L" : "M", px, py);
      pen = true;
      if (series[i].y.size() <= 60) markers += marker(i, px, py);
    }
    out += fmt::format(R"svg(<path class="l" stroke="var(--c{})" d="{}"/>{})svg"
                       "\n",
                       i % kColours, path, markers);
  }
  return out + "</svg>\n";
}

std::string bar_plot(const std::vector<std::string>& categories,
                     const std::vector<PlotSeries>& series, const PlotOptions& options) {
  require<ArgumentError>(!categories.empty() && !series.empty(), "plot",
                         "expected categories and series, got {} and {} in '{}'", categories.size(),
                         series.size(), options.title);
  std::size_t longest = 0;
  for (const std::string& name : categories) longest = std::max(longest, name.size());
  for (const PlotSeries& s : series) {
    require<ArgumentError>(s.y.size() == categories.size(), "plot",
                           "expected {} values for '{}', got {}", categories.size(), s.name,
                           s.y.size());
  }
  const double room = (options.width - kRight - kLeft) / static_cast<double>(categories.size());
  return room < kLetter * static_cast<double>(longest) + 8
             ? lying_bars(categories, series, options)
             : standing_bars(categories, series, options);
}

}  // namespace qkv::inline v0::bench
