#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <vector>

#include "autograd/functions.h"
#include "base/check.h"

namespace qkv::inline v0::autograd {
namespace {

// Row of the table for a query that lies `distance` tokens behind the key (negative: in front of
// it). The logarithm is taken in fp32, as the models of this kind were trained.
std::int64_t bucket_of(std::int64_t distance, std::int64_t buckets, std::int64_t max_distance) {
  const std::int64_t half = buckets / 2, exact = half / 2;
  const std::int64_t start = distance < 0 ? half : 0, n = std::abs(distance);
  if (n < exact) return start + n;
  const float ratio = std::log(static_cast<float>(n) / static_cast<float>(exact)) /
                      std::log(static_cast<float>(max_distance) / static_cast<float>(exact));
  const auto large = exact + static_cast<std::int64_t>(ratio * static_cast<float>(half - exact));
  return start + std::min(large, half - 1);
}

// Rows for the distances -(n - 1) .. n - 1.
std::vector<std::int64_t> bucket_list(std::int64_t n, std::int64_t buckets,
                                      std::int64_t max_distance) {
  std::vector<std::int64_t> rows;
  for (std::int64_t d = 1 - n; d < n; ++d) rows.push_back(bucket_of(d, buckets, max_distance));
  return rows;
}

template <class F>
void with_floating(DType dtype, const F& f) {
  dtype == DType::kFloat64 ? f(double{}) : f(float{});
}

}  // namespace

Var distance_bias(Context& context, const Var& table, std::int64_t n, std::int64_t max_distance) {
  const std::int64_t buckets = table.value().dim(0), heads = table.value().dim(1);
  require<ArgumentError>(
      buckets >= 4 && buckets % 2 == 0 && max_distance > buckets / 4 && n >= 1, "distance_bias",
      "expected an even number of at least 4 buckets, a maximal distance above a "
      "quarter of it and a length of at least 1, got {}, {} and {}",
      buckets, max_distance, n);
  const std::vector<std::int64_t> rows = bucket_list(n, buckets, max_distance);
  const auto row = [rows, n](std::int64_t i, std::int64_t j) {
    return rows[static_cast<std::size_t>(i - j + n - 1)];
  };
  const DType dtype = table.value().dtype();
  const bool record = context.recording(table);
  Var y(Tensor::empty({1, heads, n, n}, dtype), record);
  with_floating(dtype, [&]<class T>(T) {
    const T* from = table.value().data<T>();
    T* to = y.value().data<T>();
    for (std::int64_t h = 0; h < heads; ++h)
      for (std::int64_t i = 0; i < n; ++i)
        for (std::int64_t j = 0; j < n; ++j) *to++ = from[row(i, j) * heads + h];
  });
  if (record) {
    context.tape->record("distance_bias", y,
                         [row, n, heads, buckets, dtype, gt = table.gradient()](const Tensor& dy) {
                           std::vector<double> sums(static_cast<std::size_t>(buckets * heads), 0);
                           const Tensor dtable = Tensor::empty({buckets, heads}, dtype);
                           with_floating(dtype, [&]<class T>(T) {
                             const T* from = dy.data<T>();
                             for (std::int64_t h = 0; h < heads; ++h)
                               for (std::int64_t i = 0; i < n; ++i)
                                 for (std::int64_t j = 0; j < n; ++j)
                                   sums[static_cast<std::size_t>(row(i, j) * heads + h)] +=
                                       static_cast<double>(*from++);
                             for (std::size_t i = 0; i < sums.size(); ++i)
                               dtable.data<T>()[i] = static_cast<T>(sums[i]);
                           });
                           gt.accumulate(dtable);
                         });
  }
  return y;
}

}  // namespace qkv::inline v0::autograd
