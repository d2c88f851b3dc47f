// Plots as small self-contained SVG files. Colours follow the reader's light or dark setting and
// are told apart by colour-blind readers (Okabe and Ito 2008); every series also has its own
// marker.
#pragma once

#include <string>
#include <vector>

namespace qkv::inline v0::bench {

struct PlotSeries {
  std::string name;
  std::vector<double> x;  // bars: empty
  std::vector<double> y;  // non-finite values leave a gap
};

// A horizontal line with a label, e.g. a target.
struct PlotReference {
  std::string name;
  double y = 0;
};

struct PlotOptions {
  std::string title;
  std::string subtitle;  // one line below the title: what was measured, where
  std::string x_label, y_label;
  bool log_x = false, log_y = false;  // needs positive values
  bool from_zero = true;              // the y axis starts at 0 (not with log_y)
  std::vector<PlotReference> references;
  int width = 860, height = 440;
};

// Lines with markers. At least one finite point is needed, else ArgumentError.
std::string line_plot(const std::vector<PlotSeries>& series, const PlotOptions& options);

// Groups of bars, one group per category and one bar per series (y has one value per category).
// They stand; where the names are too long for that they lie, and the plot's height follows from
// their number.
std::string bar_plot(const std::vector<std::string>& categories,
                     const std::vector<PlotSeries>& series, const PlotOptions& options);

}  // namespace qkv::inline v0::bench
