// The definition of attention in double precision, one line per step, and its neighbours: what a
// faulty function would compute. Nothing here is fast.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/random.h"

namespace qkv::inline v0::doctor {

// [B, H, N, D], row-major.
struct Array {
  std::int64_t b = 0, h = 0, n = 0, d = 0;
  std::vector<double> x;

  Array() = default;
  Array(std::int64_t batch, std::int64_t heads, std::int64_t rows, std::int64_t width,
        double value = 0)
      : b(batch), h(heads), n(rows), d(width) {
    x.assign(static_cast<std::size_t>(b * h * n * d), value);
  }
  std::size_t index(std::int64_t ib, std::int64_t ih, std::int64_t i, std::int64_t c) const {
    return static_cast<std::size_t>(((ib * h + ih) * n + i) * d + c);
  }
  double& at(std::int64_t ib, std::int64_t ih, std::int64_t i, std::int64_t c) {
    return x[index(ib, ih, i, c)];
  }
  double at(std::int64_t ib, std::int64_t ih, std::int64_t i, std::int64_t c) const {
    return x[index(ib, ih, i, c)];
  }
  bool same_shape(const Array& o) const { return b == o.b && h == o.h && n == o.n && d == o.d; }
};

// Standard normal values that fp32 holds exactly.
Array normal_array(std::int64_t b, std::int64_t h, std::int64_t n, std::int64_t d, Random& random);

bool all_finite(const Array& a);
double largest(const Array& a);                             // max |a|
double largest_difference(const Array& a, const Array& b);  // max |a - b|; infinity for a NaN

// q k^T without scale: [B, H, N, S]; query head h reads key head map(h).
Array dot_products(const Array& q, const Array& k,
                   const std::function<std::int64_t(std::int64_t)>& map);

// Where something stands in the score matrix.
struct Place {
  std::int64_t b, h, i, j;
};
using Edit = std::function<double(const Place&, double score)>;  // -infinity blocks

// softmax over the last axis of edit(place, scale * dots); zeros where everything is blocked.
Array softmax_rows(const Array& dots, double scale, const Edit& edit);

// weights [B, H, N, S] times v [B, Hkv, S, D].
Array mix(const Array& weights, const Array& v,
          const std::function<std::int64_t(std::int64_t)>& map);

}  // namespace qkv::inline v0::doctor
