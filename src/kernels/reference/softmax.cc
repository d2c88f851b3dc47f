#include "kernels/softmax.h"

#include <cmath>
#include <limits>

namespace qkv::inline v0::kernels::reference {
namespace {

// Maximum and sum of exponentials of a row; max is -inf for a row of -inf. NaN gives NaN in the
// sum.
struct RowSum {
  double max = -std::numeric_limits<double>::infinity(), sum = 0;
};

template <class T>
RowSum row_sum(const T* x, std::int64_t width) {
  RowSum r;
  for (std::int64_t j = 0; j < width; ++j)
    if (x[j] > r.max || std::isnan(x[j])) r.max = x[j];
  if (std::isinf(r.max) && r.max < 0) return r;
  for (std::int64_t j = 0; j < width; ++j) r.sum += std::exp(x[j] - r.max);
  return r;
}

template <class T>
void forward(const T* x, T* y, std::int64_t rows, std::int64_t width) {
  for (std::int64_t r = 0; r < rows; ++r, x += width, y += width) {
    const RowSum s = row_sum(x, width);
    for (std::int64_t j = 0; j < width; ++j)
      y[j] = static_cast<T>(s.sum == 0 ? 0 : std::exp(x[j] - s.max) / s.sum);
  }
}

template <class T>
void backward(const T* dy, const T* y, T* dx, std::int64_t rows, std::int64_t width) {
  for (std::int64_t r = 0; r < rows; ++r, dy += width, y += width, dx += width) {
    double dot = 0;
    for (std::int64_t j = 0; j < width; ++j) dot += static_cast<double>(dy[j]) * y[j];
    for (std::int64_t j = 0; j < width; ++j) dx[j] = static_cast<T>(y[j] * (dy[j] - dot));
  }
}

template <class T>
void loss_row(const CrossEntropyRows<T>& p, std::int64_t r, CrossEntropySums& sums) {
  const T* x = p.logits + r * p.width;
  const std::int32_t target = p.targets[r];
  const RowSum s = row_sum(x, p.width);
  const double log_sum = s.max + std::log(s.sum),
               uniform = p.smoothing / static_cast<double>(p.width);
  double loss = (1 - p.smoothing) * (log_sum - x[target]);
  if (p.smoothing > 0) {
    double total = 0;
    for (std::int64_t j = 0; j < p.width; ++j) total += log_sum - x[j];
    loss += uniform * total;
  }
  sums.loss += loss;
  ++sums.counted;
  std::int64_t best = 0;
  for (std::int64_t j = 1; j < p.width; ++j)
    if (x[j] > x[best]) best = j;
  sums.correct += best == target;
  if (!p.dlogits) return;
  for (std::int64_t j = 0; j < p.width; ++j) {
    const double q = uniform + (j == target ? 1 - p.smoothing : 0);
    p.dlogits[r * p.width + j] = static_cast<T>(std::exp(x[j] - s.max) / s.sum - q);
  }
}

template <class T>
CrossEntropySums cross_entropy(const CrossEntropyRows<T>& p) {
  CrossEntropySums sums;
  for (std::int64_t r = 0; r < p.rows; ++r) {
    if (p.targets[r] != p.ignore_index) {
      loss_row(p, r, sums);
    } else if (p.dlogits) {
      for (std::int64_t j = 0; j < p.width; ++j) p.dlogits[r * p.width + j] = 0;
    }
  }
  return sums;
}

}  // namespace

const SoftmaxKernels<float> kSoftmaxF32 = {forward<float>, backward<float>, cross_entropy<float>};
const SoftmaxKernels<double> kSoftmaxF64 = {forward<double>, backward<double>,
                                            cross_entropy<double>};

}  // namespace qkv::inline v0::kernels::reference
