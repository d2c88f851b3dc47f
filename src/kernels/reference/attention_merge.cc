// Bound by memory: the plain loops are all there is.
#include "kernels/attention_merge.h"

#include <cmath>

#include "base/convert.h"
#include "base/thread_pool.h"

namespace qkv::inline v0::kernels {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::int64_t kChunk = 256;

struct Shares {
  double a, b, lse;
};
// e^(la - l) and e^(lb - l); 0 for a side without keys.
Shares shares_of(double la, double lb) {
  if (la == -kInfinity && lb == -kInfinity) return {0, 0, -kInfinity};
  const double largest = lb > la ? lb : la;
  const double a = la == -kInfinity ? 0 : std::exp(la - largest);
  const double b = lb == -kInfinity ? 0 : std::exp(lb - largest);
  return {a / (a + b), b / (a + b), largest + std::log(a + b)};
}

template <class T>
double times(double share, const T& value) {
  return share == 0 ? 0 : share * to_double(value);
}

// Gradient of one side: of its values share * dout, of its lse share * (dout (side - merged) +
// dlse).
template <class T>
void side_gradient(const MergeProblem<T>& p, std::int64_t row, double share, const T* side, T* to,
                   typename MergeProblem<T>::Statistic* to_lse) {
  const std::int64_t at = p.lse_index(row);
  double sum = share == 0 || p.dlse == nullptr ? 0 : static_cast<double>(p.dlse[at]);
  for (std::int64_t i = row * p.depth; i < (row + 1) * p.depth; ++i) {
    to[i] = from_double<T>(times(share, p.dout[i]));
    if (share != 0) sum += to_double(p.dout[i]) * (to_double(side[i]) - to_double(p.merged[i]));
  }
  to_lse[at] = static_cast<typename MergeProblem<T>::Statistic>(share * sum);
}

}  // namespace

template <class T>
void merge_attention(const MergeProblem<T>& p) {
  parallel_chunks(p.rows(), kChunk, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int64_t at = p.lse_index(row);
      const Shares shares =
          shares_of(static_cast<double>(p.a_lse[at]), static_cast<double>(p.b_lse[at]));
      p.lse[at] = static_cast<typename MergeProblem<T>::Statistic>(shares.lse);
      for (std::int64_t i = row * p.depth; i < (row + 1) * p.depth; ++i)
        p.out[i] = from_double<T>(times(shares.a, p.a[i]) + times(shares.b, p.b[i]));
    }
  });
}

template <class T>
void merge_attention_backward(const MergeProblem<T>& p) {
  parallel_chunks(p.rows(), kChunk, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int64_t at = p.lse_index(row);
      const Shares shares =
          shares_of(static_cast<double>(p.a_lse[at]), static_cast<double>(p.b_lse[at]));
      side_gradient(p, row, shares.a, p.a, p.da, p.da_lse);
      side_gradient(p, row, shares.b, p.b, p.db, p.db_lse);
    }
  });
}

template void merge_attention(const MergeProblem<double>&);
template void merge_attention(const MergeProblem<float>&);
template void merge_attention(const MergeProblem<BFloat16>&);
template void merge_attention(const MergeProblem<Float16>&);
template void merge_attention_backward(const MergeProblem<double>&);
template void merge_attention_backward(const MergeProblem<float>&);
template void merge_attention_backward(const MergeProblem<BFloat16>&);
template void merge_attention_backward(const MergeProblem<Float16>&);

}  // namespace qkv::inline v0::kernels
