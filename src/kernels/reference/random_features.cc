#include "kernels/random_features.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/random.h"

namespace qkv::inline v0::kernels {

namespace {

double dot(const double* a, const double* b, std::int64_t n) {
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace

std::vector<double> orthogonal_features(std::int64_t count, std::int64_t depth,
                                        std::uint64_t seed) {
  Random random(seed);
  std::vector<double> rows(static_cast<std::size_t>(count * depth));
  for (double& x : rows) x = random.normal();
  for (std::int64_t first = 0; first < count; first += depth) {
    const std::int64_t end = std::min(count, first + depth);
    for (std::int64_t r = first; r < end; ++r) {
      double* row = rows.data() + r * depth;
      // Twice: what the first pass leaves by rounding.
      for (int pass = 0; pass < 2; ++pass)
        for (std::int64_t other = first; other < r; ++other) {
          const double* unit = rows.data() + other * depth;
          const double share = dot(row, unit, depth);
          for (std::int64_t d = 0; d < depth; ++d) row[d] -= share * unit[d];
        }
      const double length = std::sqrt(dot(row, row, depth));
      for (std::int64_t d = 0; d < depth; ++d) row[d] /= length;
    }
  }
  for (std::int64_t r = 0; r < count; ++r) {
    double square = 0;
    for (std::int64_t d = 0; d < depth; ++d) {
      const double x = random.normal();
      square += x * x;
    }
    for (std::int64_t d = 0; d < depth; ++d)
      rows[static_cast<std::size_t>(r * depth + d)] *= std::sqrt(square);
  }
  return rows;
}

template <class T>
double feature_level(const T* logits, const T* weights, std::int64_t count, const T* x,
                     std::int64_t depth, double scale) {
  const std::int64_t best = std::max_element(weights, weights + count) - weights;
  double square = 0;
  for (std::int64_t d = 0; d < depth; ++d)
    square += static_cast<double>(x[d]) * static_cast<double>(x[d]);
  return static_cast<double>(logits[best]) - std::log(static_cast<double>(weights[best])) -
         scale * square / 2;
}

template <class T>
void level_features(const double* levels, std::int64_t tokens, bool causal, T* rows,
                    std::int64_t stride, std::int64_t count, T* decay) {
  constexpr double kNone = -std::numeric_limits<double>::infinity();
  double largest = kNone;
  if (!causal)
    for (std::int64_t t = 0; t < tokens; ++t) largest = std::max(largest, levels[t]);
  for (std::int64_t t = 0; t < tokens; ++t) {
    const double before = largest;
    largest = std::max(largest, levels[t]);
    if (causal) decay[t] = static_cast<T>(before == kNone ? 1.0 : std::exp(before - largest));
    const auto factor = static_cast<T>(levels[t] == kNone ? 0.0 : std::exp(levels[t] - largest));
    for (std::int64_t r = 0; r < count; ++r) rows[t * stride + r] *= factor;
  }
}

template double feature_level(const float*, const float*, std::int64_t, const float*, std::int64_t,
                              double);
template double feature_level(const double*, const double*, std::int64_t, const double*,
                              std::int64_t, double);
template void level_features(const double*, std::int64_t, bool, float*, std::int64_t, std::int64_t,
                             float*);
template void level_features(const double*, std::int64_t, bool, double*, std::int64_t, std::int64_t,
                             double*);

}  // namespace qkv::inline v0::kernels
