#include "kernels/reference/attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/convert.h"
#include "base/memory.h"
#include "base/thread_pool.h"
#include "kernels/attention_bias.h"

namespace qkv::inline v0::kernels {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The score matrix of one (sequence, head), accounted as workspace.
class Scores {
 public:
  Scores(std::int64_t rows, std::int64_t columns)
      : columns_(columns),
        bytes_(static_cast<std::size_t>(rows * columns) * sizeof(double)),
        data_(static_cast<double*>(allocate_bytes(bytes_, MemoryKind::kWorkspace))) {}
  ~Scores() { free_bytes(data_, bytes_, MemoryKind::kWorkspace); }
  Scores(const Scores&) = delete;
  Scores& operator=(const Scores&) = delete;
  double* row(std::int64_t i) { return data_ + i * columns_; }

 private:
  std::int64_t columns_;
  std::size_t bytes_;
  double* data_;
};

template <class T>
double dot(const T* a, const T* b, std::int64_t n) {
  double sum = 0;
  for (std::int64_t d = 0; d < n; ++d) sum += to_double(a[d]) * to_double(b[d]);
  return sum;
}

// What one (sequence, query head) needs.
template <class T>
struct Head {
  const AttentionProblem<T>& p;
  std::int64_t b, h, n, s;
  const T *q, *k, *v;

  Head(const AttentionProblem<T>& problem, std::int64_t sequence, std::int64_t head)
      : p(problem), b(sequence), h(head), n(p.queries.length(b)), s(p.keys.length(b)) {
    const std::int64_t kv = h / p.group();
    q = p.q.at(p.queries, b, h);
    k = p.k.at(p.keys, b, kv);
    v = p.v.at(p.keys, b, kv);
  }
  const T* q_row(std::int64_t i) const { return q + i * p.q.token_stride; }
  const T* k_row(std::int64_t j) const { return k + j * p.k.token_stride; }
  const T* v_row(std::int64_t j) const { return v + j * p.v.token_stride; }

  // row[j] = cap(scale * q_i k_j) + bias, -inf where j is hidden, for all S keys. slopes: null, or
  // where the derivative of the cap goes.
  void scores(std::int64_t i, double* row, double* slopes) const {
    std::fill(row, row + s, -kInfinity);
    const std::int64_t end = p.key_end(b, i);
    for (std::int64_t j = p.key_begin(b, i); j < end; ++j) {
      const double bias = p.mask.bias(b, h, i, j, i + s - n);
      if (bias == -kInfinity) continue;
      double score = p.scale * dot(q_row(i), k_row(j), p.head_size), slope = 1;
      if (p.softcap != 0) {
        const double t = std::tanh(score / p.softcap);
        score = p.softcap * t;
        slope = 1 - t * t;
      }
      row[j] = score + bias;
      if (slopes) slopes[j] = slope;
    }
  }
  // factors[j] = what dropout multiplies weight j with: 0 or 1 / (1 - p).
  void dropout_factors(std::int64_t i, std::vector<double>& factors) const {
    for (std::int64_t block = 0; block * 4 < s; ++block) {
      const PhiloxBlock numbers = p.dropout.numbers(b, h, i, block);
      for (std::int64_t j = block * 4; j < std::min(s, block * 4 + 4); ++j)
        factors[static_cast<std::size_t>(j)] =
            p.dropout.drops(numbers[static_cast<std::size_t>(j % 4)]) ? 0.0 : p.dropout.keep_scale;
    }
  }
};

template <class T>
void forward_head(const Head<T>& head) {
  const AttentionProblem<T>& p = head.p;
  const std::int64_t n = head.n, s = head.s;
  T* out = p.out.at(p.queries, head.b, head.h);
  using Statistic = typename AttentionProblem<T>::Statistic;
  Statistic* lse = p.lse_at(head.b, head.h);
  Statistic* weights = p.weights ? p.weights + p.weight_offsets[head.b] + head.h * n * s : nullptr;
  Scores scores(n, s);
  std::vector<double> sum(static_cast<std::size_t>(p.value_size));
  std::vector<double> factors(static_cast<std::size_t>(s), 1.0);
  for (std::int64_t i = 0; i < n; ++i) {
    double* row = scores.row(i);
    head.scores(i, row, nullptr);
    double largest = -kInfinity, total = 0;
    for (std::int64_t j = 0; j < s; ++j) largest = row[j] > largest ? row[j] : largest;
    for (std::int64_t j = 0; j < s; ++j) {
      row[j] = row[j] == -kInfinity ? 0.0 : std::exp(row[j] - largest);
      total += row[j];
    }
    const bool empty = total == 0;  // NaN is not empty
    if (p.dropout.active()) head.dropout_factors(i, factors);
    std::fill(sum.begin(), sum.end(), 0.0);
    for (std::int64_t j = 0; j < s; ++j) {
      if (row[j] == 0) continue;
      row[j] = row[j] / total * factors[static_cast<std::size_t>(j)];
      if (row[j] == 0) continue;
      for (std::int64_t d = 0; d < p.value_size; ++d)
        sum[static_cast<std::size_t>(d)] += row[j] * to_double(head.v_row(j)[d]);
    }
    for (std::int64_t d = 0; d < p.value_size; ++d)
      out[i * p.out.token_stride + d] = from_double<T>(sum[static_cast<std::size_t>(d)]);
    lse[i] = static_cast<Statistic>(empty ? -kInfinity : largest + std::log(total));
    if (weights)
      for (std::int64_t j = 0; j < s; ++j) weights[i * s + j] = static_cast<Statistic>(row[j]);
  }
}

// Adds the gradients of one query head to dk, dv of its key/value head, and to dbias unless null;
// writes dq.
template <class T>
void backward_head(const Head<T>& head, double* dk, double* dv,
                   const AttentionBiasGradient* dbias) {
  const AttentionProblem<T>& p = head.p;
  const std::int64_t s = head.s, d_k = p.head_size, d_v = p.value_size;
  const T* dout = p.dout.at(p.queries, head.b, head.h);
  T* dq = p.dq.at(p.queries, head.b, head.h);
  const auto* dlse = p.dlse_at(head.b, head.h);
  const auto size = [](std::int64_t n) { return static_cast<std::size_t>(n); };
  Scores weights(head.n, s);
  std::vector<double> dp(size(s)), factors(size(s), 1.0), slopes(size(s)), sum(size(d_k));
  for (std::int64_t i = 0; i < head.n; ++i) {
    double* row = weights.row(i);
    head.scores(i, row, slopes.data());
    double largest = -kInfinity, total = 0;
    for (std::int64_t j = 0; j < s; ++j) largest = row[j] > largest ? row[j] : largest;
    for (std::int64_t j = 0; j < s; ++j) {
      row[j] = row[j] == -kInfinity ? -1.0 : std::exp(row[j] - largest);  // -1: hidden
      if (!(row[j] < 0)) total += row[j];
    }
    if (p.dropout.active()) head.dropout_factors(i, factors);
    const T* g = dout + i * p.dout.token_stride;
    double delta = 0;
    for (std::int64_t j = 0; j < s; ++j) {
      if (row[j] < 0) continue;
      row[j] /= total;
      const double factor = factors[size(j)], weight = row[j] * factor;
      dp[size(j)] = factor == 0 ? 0.0 : factor * dot(g, head.v_row(j), d_v);
      delta += row[j] * dp[size(j)];
      if (factor == 0) continue;
      for (std::int64_t d = 0; d < d_v; ++d) dv[j * d_v + d] += weight * to_double(g[d]);
    }
    if (dlse) delta -= static_cast<double>(dlse[i]);
    std::fill(sum.begin(), sum.end(), 0.0);
    for (std::int64_t j = 0; j < s; ++j) {
      if (row[j] < 0) continue;
      const double dscore = row[j] * (dp[size(j)] - delta);
      if (dbias) add_to_bias(*dbias, head.b, head.h, i, j, dscore);
      const double ds = dscore * slopes[size(j)] * p.scale;
      for (std::int64_t d = 0; d < d_k; ++d) {
        sum[size(d)] += ds * to_double(head.k_row(j)[d]);
        dk[j * d_k + d] += ds * to_double(head.q_row(i)[d]);
      }
    }
    for (std::int64_t d = 0; d < d_k; ++d)
      dq[i * p.dq.token_stride + d] = from_double<T>(sum[size(d)]);
  }
}

template <class T>
void store_rows(const std::vector<double>& from, T* to, std::int64_t stride, std::int64_t width) {
  const auto rows = static_cast<std::int64_t>(from.size()) / std::max<std::int64_t>(width, 1);
  for (std::int64_t j = 0; j < rows; ++j)
    for (std::int64_t d = 0; d < width; ++d)
      to[j * stride + d] = from_double<T>(from[static_cast<std::size_t>(j * width + d)]);
}

}  // namespace

template <class T>
void attention_reference(const AttentionProblem<T>& problem) {
  parallel_for(problem.batch * problem.heads, [&](std::int64_t item) {
    forward_head(Head<T>(problem, item / problem.heads, item % problem.heads));
  });
}

template <class T>
void attention_backward_reference(const AttentionProblem<T>& problem) {
  const auto run = [&](std::int64_t b, std::int64_t kv, const AttentionBiasGradient* dbias) {
    const auto s = static_cast<std::size_t>(problem.keys.length(b));
    std::vector<double> dk(s * static_cast<std::size_t>(problem.head_size));
    std::vector<double> dv(s * static_cast<std::size_t>(problem.value_size));
    for (std::int64_t g = 0; g < problem.group(); ++g)
      backward_head(Head<T>(problem, b, kv * problem.group() + g), dk.data(), dv.data(), dbias);
    store_rows(dk, problem.dk.at(problem.keys, b, kv), problem.dk.token_stride, problem.head_size);
    store_rows(dv, problem.dv.at(problem.keys, b, kv), problem.dv.token_stride, problem.value_size);
  };
  if (problem.dbias.data != nullptr) {
    sum_bias_gradient(problem.dbias, problem.batch, problem.kv_heads,
                      [&](std::int64_t b, std::int64_t kv, const AttentionBiasGradient& sum, bool) {
                        run(b, kv, &sum);
                      });
    return;
  }
  parallel_for(problem.batch * problem.kv_heads, [&](std::int64_t item) {
    run(item / problem.kv_heads, item % problem.kv_heads, nullptr);
  });
}

template void attention_reference(const AttentionProblem<float>&);
template void attention_reference(const AttentionProblem<double>&);
template void attention_backward_reference(const AttentionProblem<float>&);
template void attention_backward_reference(const AttentionProblem<double>&);
template void attention_reference(const AttentionProblem<BFloat16>&);
template void attention_reference(const AttentionProblem<Float16>&);
template void attention_backward_reference(const AttentionProblem<BFloat16>&);
template void attention_backward_reference(const AttentionProblem<Float16>&);

}  // namespace qkv::inline v0::kernels
