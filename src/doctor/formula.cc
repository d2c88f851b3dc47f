#include "doctor/formula.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace qkv::inline v0::doctor {

Array normal_array(std::int64_t b, std::int64_t h, std::int64_t n, std::int64_t d, Random& random) {
  Array a(b, h, n, d);
  for (double& value : a.x) value = static_cast<double>(static_cast<float>(random.normal()));
  return a;
}

bool all_finite(const Array& a) {
  return std::all_of(a.x.begin(), a.x.end(), [](double value) { return std::isfinite(value); });
}

double largest(const Array& a) {
  double most = 0;
  for (const double value : a.x) most = std::max(most, std::fabs(value));
  return most;
}

double largest_difference(const Array& a, const Array& b) {
  if (!a.same_shape(b)) return std::numeric_limits<double>::infinity();
  double most = 0;
  for (std::size_t i = 0; i < a.x.size(); ++i) {
    const double difference = std::fabs(a.x[i] - b.x[i]);
    if (std::isnan(difference)) return std::numeric_limits<double>::infinity();
    most = std::max(most, difference);
  }
  return most;
}

Array dot_products(const Array& q, const Array& k,
                   const std::function<std::int64_t(std::int64_t)>& map) {
  Array out(q.b, q.h, q.n, k.n);
  for (std::int64_t b = 0; b < q.b; ++b) {
    for (std::int64_t h = 0; h < q.h; ++h) {
      const std::int64_t g = map(h);
      for (std::int64_t i = 0; i < q.n; ++i) {
        for (std::int64_t j = 0; j < k.n; ++j) {
          double sum = 0;
          for (std::int64_t c = 0; c < q.d; ++c) sum += q.at(b, h, i, c) * k.at(b, g, j, c);
          out.at(b, h, i, j) = sum;
        }
      }
    }
  }
  return out;
}

Array softmax_rows(const Array& dots, double scale, const Edit& edit) {
  constexpr double kBlocked = -std::numeric_limits<double>::infinity();
  Array out = dots;
  for (std::int64_t b = 0; b < dots.b; ++b) {
    for (std::int64_t h = 0; h < dots.h; ++h) {
      for (std::int64_t i = 0; i < dots.n; ++i) {
        double* row = &out.x[out.index(b, h, i, 0)];
        double most = kBlocked, sum = 0;
        for (std::int64_t j = 0; j < dots.d; ++j) {
          row[j] = edit({b, h, i, j}, scale * row[j]);
          most = std::max(most, row[j]);
        }
        for (std::int64_t j = 0; j < dots.d; ++j) {
          row[j] = most == kBlocked ? 0 : std::exp(row[j] - most);
          sum += row[j];
        }
        for (std::int64_t j = 0; j < dots.d && sum > 0; ++j) row[j] /= sum;
      }
    }
  }
  return out;
}

Array mix(const Array& weights, const Array& v,
          const std::function<std::int64_t(std::int64_t)>& map) {
  Array out(weights.b, weights.h, weights.n, v.d);
  for (std::int64_t b = 0; b < weights.b; ++b) {
    for (std::int64_t h = 0; h < weights.h; ++h) {
      const std::int64_t g = map(h);
      for (std::int64_t i = 0; i < weights.n; ++i) {
        for (std::int64_t j = 0; j < weights.d; ++j) {
          const double w = weights.at(b, h, i, j);
          if (w == 0) continue;
          for (std::int64_t c = 0; c < v.d; ++c) out.at(b, h, i, c) += w * v.at(b, g, j, c);
        }
      }
    }
  }
  return out;
}

}  // namespace qkv::inline v0::doctor
