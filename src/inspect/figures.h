// What one attention head does, and what one tensor holds, in a few numbers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "qkv/tensor.h"

#include "base/json.h"

namespace qkv::inline v0::inspect {

// Means over the queries of one head. Weights of each row sum to 1.
struct HeadFigures {
  double entropy = 0;  // of a row, in nats
  double entropy_share =
      0;  // entropy / ln N: 1 is even attention, 0 a single key (0 for one token)
  double mean_distance = 0;  // sum_j w_ij |i - j|, in tokens
  double largest = 0;        // largest weight of a row
  double diagonal = 0;       // w_ii
  double previous = 0;       // w_i,i-1, over the rows that have it
  double next = 0;           // w_i,i+1, likewise
  double first = 0;          // w_i0, over rows i > 0
  double near = 0;           // weight within max(2, N / 10) tokens
  // The first that holds: "diagonal", "previous", "next", "first" (that mean is at least 0.5),
  // "sparse" (largest at least 0.5), "block" (near at least 0.7, in texts where even attention
  // would give under 0.5), "even" (entropy_share at least 0.95), else "mixed".
  std::string kind;
  Json to_json() const;
};

// weights: [N, N] fp32, contiguous, N >= 1; ShapeError otherwise.
HeadFigures head_figures(const Tensor& weights);

struct TensorFigures {
  std::int64_t count = 0, nan = 0, infinite = 0;
  double mean = 0, deviation = 0, min = 0,
         max = 0;  // of the finite elements (0 if there are none); deviation / n, not n - 1
  Json to_json() const;
};
// Any dtype and strides; sums in double.
TensorFigures tensor_figures(const Tensor& tensor);

}  // namespace qkv::inline v0::inspect
