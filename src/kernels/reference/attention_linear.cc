#include "kernels/reference/attention_linear.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/thread_pool.h"

namespace qkv::inline v0::kernels {

namespace {

double phi(double x) { return x > 0 ? x + 1 : std::exp(x); }
double phi_slope(double x) { return x > 0 ? 1 : std::exp(x); }

std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

// S [D, Dv] and z [D] of the running sums (or R and r of the backward ones).
struct State {
  std::int64_t rows, columns;
  std::vector<double> matrix, vector;

  State(std::int64_t d, std::int64_t dv)
      : rows(d), columns(dv), matrix(size(d * dv)), vector(size(d)) {}
  // matrix += a b^T, vector += a * c
  void add(const std::vector<double>& a, const std::vector<double>& b, double c) {
    for (std::int64_t r = 0; r < rows; ++r) {
      const double scale = a[size(r)];
      double* row = matrix.data() + r * columns;
      for (std::int64_t d = 0; d < columns; ++d) row[d] += scale * b[size(d)];
      vector[size(r)] += scale * c;
    }
  }
  void scale(double factor) {
    for (double& x : matrix) x *= factor;
    for (double& x : vector) x *= factor;
  }
  // y = a^T matrix; returns a . vector
  double times(const std::vector<double>& a, std::vector<double>& y) const {
    std::fill(y.begin(), y.end(), 0.0);
    double sum = 0;
    for (std::int64_t r = 0; r < rows; ++r) {
      const double* row = matrix.data() + r * columns;
      for (std::int64_t d = 0; d < columns; ++d) y[size(d)] += a[size(r)] * row[d];
      sum += a[size(r)] * vector[size(r)];
    }
    return sum;
  }
  // y = matrix b + vector * c
  void times_right(const std::vector<double>& b, double c, std::vector<double>& y) const {
    for (std::int64_t r = 0; r < rows; ++r) {
      const double* row = matrix.data() + r * columns;
      double sum = vector[size(r)] * c;
      for (std::int64_t d = 0; d < columns; ++d) sum += row[d] * b[size(d)];
      y[size(r)] = sum;
    }
  }
};

// One (sequence, query head) with its rows and work vectors.
template <class T>
struct LinearHead {
  const LinearAttentionProblem<T>& p;
  std::int64_t b, h, kv, n;
  std::vector<double> a, value, y;  // phi of a row [D], a value row [Dv], a result row [Dv]

  LinearHead(const LinearAttentionProblem<T>& problem, std::int64_t sequence, std::int64_t head)
      : p(problem),
        b(sequence),
        h(head),
        kv(head / (problem.heads / problem.kv_heads)),
        n(problem.sequences.length(sequence)),
        a(size(problem.head_size)),
        value(size(problem.value_size)),
        y(size(problem.value_size)) {}

  template <class U>
  U* row(const AttentionOperand<U>& operand, std::int64_t head, std::int64_t t) const {
    return operand.at(p.sequences, b, head) + t * operand.token_stride;
  }
  double slope(T x) const { return p.features ? 1 : phi_slope(static_cast<double>(x)); }
  void load_phi(const T* x) {
    for (std::size_t d = 0; d < a.size(); ++d)
      a[d] = p.features ? static_cast<double>(x[d]) : phi(static_cast<double>(x[d]));
  }
  void decay(State& state, std::int64_t t) const {
    const T* factors = p.decay_at(b, kv);
    if (factors != nullptr && t < n) state.scale(static_cast<double>(factors[t]));
  }
  void add_key(State& state, std::int64_t j) {
    load_phi(row(p.k, kv, j));
    const T* v = row(p.v, kv, j);
    for (std::size_t d = 0; d < value.size(); ++d) value[d] = static_cast<double>(v[d]);
    state.add(a, value, 1.0);
  }
};

template <class T>
void forward_head(LinearHead<T> head) {
  const LinearAttentionProblem<T>& p = head.p;
  State state(p.head_size, p.value_size);
  if (!p.causal)
    for (std::int64_t j = 0; j < head.n; ++j) head.add_key(state, j);
  for (std::int64_t i = 0; i < head.n; ++i) {
    if (p.causal) {
      head.decay(state, i);
      head.add_key(state, i);
    }
    head.load_phi(head.row(p.q, head.h, i));
    const double denominator = state.times(head.a, head.y);
    T* out = head.row(p.out, head.h, i);
    for (std::size_t d = 0; d < head.y.size(); ++d)
      out[d] = static_cast<T>(denominator <= p.least ? 0.0 : head.y[d] / denominator);
  }
}

// With dnum_i = dout_i / den_i and dden_i = -(dout_i . out_i) / den_i: writes dq, and adds to dk,
// dv [S, D], [S, Dv] what flows through R_j = sum_i phi(q_i) dnum_i^T and r_j = sum_i phi(q_i)
// dden_i.
template <class T>
void backward_head(LinearHead<T> head, std::vector<double>& dk, std::vector<double>& dv) {
  const LinearAttentionProblem<T>& p = head.p;
  const std::int64_t n = head.n;
  State forward(p.head_size, p.value_size), backward(p.head_size, p.value_size);
  std::vector<double> dnum(size(p.value_size)), slope(size(p.head_size));
  std::vector<double> inverse(size(n)), dden(size(n));
  const auto load_dnum = [&](std::int64_t i) {
    const T* g = head.row(p.dout, head.h, i);
    for (std::size_t d = 0; d < dnum.size(); ++d)
      dnum[d] = static_cast<double>(g[d]) * inverse[size(i)];
  };
  if (!p.causal)
    for (std::int64_t j = 0; j < n; ++j) head.add_key(forward, j);
  for (std::int64_t i = 0; i < n; ++i) {
    if (p.causal) {
      head.decay(forward, i);
      head.add_key(forward, i);
    }
    const T* q = head.row(p.q, head.h, i);
    head.load_phi(q);
    const double denominator = forward.times(head.a, head.y);
    inverse[size(i)] = denominator <= p.least ? 0.0 : 1 / denominator;
    load_dnum(i);
    double dot = 0;
    for (std::size_t d = 0; d < dnum.size(); ++d) dot += dnum[d] * head.y[d];
    dden[size(i)] = -dot * inverse[size(i)];
    forward.times_right(dnum, dden[size(i)], slope);
    T* dq = head.row(p.dq, head.h, i);
    for (std::size_t d = 0; d < slope.size(); ++d)
      dq[d] = static_cast<T>(slope[d] * head.slope(q[d]));
  }
  const auto add_query = [&](std::int64_t i) {
    head.load_phi(head.row(p.q, head.h, i));
    load_dnum(i);
    backward.add(head.a, dnum, dden[size(i)]);
  };
  if (!p.causal)
    for (std::int64_t i = 0; i < n; ++i) add_query(i);
  for (std::int64_t j = n - 1; j >= 0; --j) {
    if (p.causal) {
      head.decay(backward, j + 1);
      add_query(j);
    }
    const T* k = head.row(p.k, head.kv, j);
    const T* v = head.row(p.v, head.kv, j);
    for (std::size_t d = 0; d < head.value.size(); ++d) head.value[d] = static_cast<double>(v[d]);
    backward.times_right(head.value, 1.0, slope);
    for (std::int64_t d = 0; d < p.head_size; ++d)
      dk[size(j * p.head_size + d)] += slope[size(d)] * head.slope(k[d]);
    head.load_phi(k);
    backward.times(head.a, head.y);
    for (std::int64_t d = 0; d < p.value_size; ++d)
      dv[size(j * p.value_size + d)] += head.y[size(d)];
  }
}

}  // namespace

template <class T>
void linear_attention_reference(const LinearAttentionProblem<T>& problem) {
  parallel_for(problem.batch * problem.heads, [&](std::int64_t item) {
    forward_head(LinearHead<T>(problem, item / problem.heads, item % problem.heads));
  });
}

template <class T>
void linear_attention_backward_reference(const LinearAttentionProblem<T>& problem) {
  const std::int64_t group = problem.heads / problem.kv_heads;
  parallel_for(problem.batch * problem.kv_heads, [&](std::int64_t item) {
    const std::int64_t b = item / problem.kv_heads, kv = item % problem.kv_heads;
    const std::int64_t n = problem.sequences.length(b);
    std::vector<double> dk(size(n * problem.head_size)), dv(size(n * problem.value_size));
    for (std::int64_t g = 0; g < group; ++g)
      backward_head(LinearHead<T>(problem, b, kv * group + g), dk, dv);
    const auto store = [&](const std::vector<double>& from, const AttentionOperand<T>& to,
                           std::int64_t width) {
      for (std::int64_t j = 0; j < n; ++j)
        for (std::int64_t d = 0; d < width; ++d)
          to.at(problem.sequences, b, kv)[j * to.token_stride + d] =
              static_cast<T>(from[size(j * width + d)]);
    };
    store(dk, problem.dk, problem.head_size);
    store(dv, problem.dv, problem.value_size);
  });
}

template void linear_attention_reference(const LinearAttentionProblem<float>&);
template void linear_attention_reference(const LinearAttentionProblem<double>&);
template void linear_attention_backward_reference(const LinearAttentionProblem<float>&);
template void linear_attention_backward_reference(const LinearAttentionProblem<double>&);

}  // namespace qkv::inline v0::kernels
