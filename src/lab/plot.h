// Pictures of results as SVG: small, complete in themselves, readable on light and dark pages.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace qkv::inline v0::lab {

struct Line {
  std::string name;
  std::vector<std::pair<double, double>> points;  // points that a logarithmic axis cannot show are
                                                  // left out
};

struct LineChart {
  std::string title, x_label, y_label;
  bool log_x = false, log_y = false;
  std::vector<Line> lines;
};
std::string line_chart(const LineChart& chart);

struct HeatMap {
  std::string title;
  std::vector<std::string> rows, columns;
  std::vector<float> values;        // rows x columns, >= 0; the largest is the darkest
  std::vector<std::size_t> marked;  // rows and columns with this index are set in bold
};
// Maps beside each other in one picture, each cell with its value as a tooltip.
std::string heat_maps(const std::string& title, const std::vector<HeatMap>& maps);

}  // namespace qkv::inline v0::lab
