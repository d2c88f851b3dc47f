#include "base/nearest.h"

#include <algorithm>
#include <vector>

namespace qkv::inline v0 {
namespace {

// Optimal string alignment distance.
std::size_t distance(std::string_view a, std::string_view b) {
  const std::size_t width = b.size() + 1;
  std::vector<std::size_t> d((a.size() + 1) * width);
  for (std::size_t i = 0; i <= a.size(); ++i) {
    for (std::size_t j = 0; j <= b.size(); ++j) {
      std::size_t& cell = d[i * width + j];
      if (i == 0 || j == 0) {
        cell = i + j;
        continue;
      }
      const std::size_t cost = a[i - 1] == b[j - 1] ? 0 : 1;
      cell = std::min({d[(i - 1) * width + j] + 1, d[i * width + j - 1] + 1,
                       d[(i - 1) * width + j - 1] + cost});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) cell = std::min(cell, d[(i - 2) * width + j - 2] + 1);
    }
  }
  return d.back();
}

}  // namespace

std::string nearest_name(std::string_view word, std::span<const std::string> names) {
  constexpr std::size_t kLongest = 200;  // nobody misspells more, and the table below is square
  if (word.size() > kLongest) return "";
  std::string best;
  std::size_t best_distance = word.size() / 2 + 1;
  for (const std::string& name : names) {
    const std::size_t d = distance(word, name);
    if (d >= best_distance) continue;
    best = name;
    best_distance = d;
  }
  return best;
}

}  // namespace qkv::inline v0
