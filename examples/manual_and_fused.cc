// Manual against fused attention: the error and the time.
//
// Manual is the textbook: all scores, softmax over each row, weights times values, with the whole N
// x N matrix in memory. Fused walks over blocks of keys and keeps a running maximum and sum, so its
// memory grows with N alone.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

#include <qkv/attention.h>
#include <qkv/tensor.h>
#include <qkv/threads.h>

namespace {

constexpr std::int64_t kHeads = 4, kHeadSize = 64;

template <class T>
qkv::Tensor made_up(std::int64_t n, double phase) {
  qkv::Tensor x = qkv::Tensor::empty({1, kHeads, n, kHeadSize}, qkv::dtype_of<T>());
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    const double u = std::sin(12.9898 * static_cast<double>(i % 100003) + phase) * 43758.5453;
    x.data<T>()[i] = static_cast<T>(4 * (u - std::floor(u)) - 2);
  }
  return x;
}

// q, k, v, out: [1, H, N, D]. Plain loops, arithmetic in T.
template <class T>
qkv::Tensor manual(const qkv::Tensor& q, const qkv::Tensor& k, const qkv::Tensor& v) {
  const std::int64_t n = q.dim(2), d = kHeadSize;
  qkv::Tensor out = qkv::Tensor::zeros(q.shape(), q.dtype());
  std::vector<T> scores(static_cast<std::size_t>(n * n));
  const T scale = static_cast<T>(1 / std::sqrt(static_cast<double>(d)));
  for (std::int64_t head = 0; head < kHeads; ++head) {
    const T* qh = q.data<T>() + head * n * d;
    const T* kh = k.data<T>() + head * n * d;
    const T* vh = v.data<T>() + head * n * d;
    T* oh = out.data<T>() + head * n * d;
    for (std::int64_t i = 0; i < n; ++i) {
      T* row = scores.data() + i * n;
      for (std::int64_t j = 0; j < n; ++j) {
        T dot = 0;
        for (std::int64_t c = 0; c < d; ++c) dot += qh[i * d + c] * kh[j * d + c];
        row[j] = dot * scale;
      }
      const T largest = *std::max_element(row, row + n);
      T sum = 0;
      for (std::int64_t j = 0; j < n; ++j) sum += row[j] = std::exp(row[j] - largest);
      for (std::int64_t j = 0; j < n; ++j) {
        const T weight = row[j] / sum;
        for (std::int64_t c = 0; c < d; ++c) oh[i * d + c] += weight * vh[j * d + c];
      }
    }
  }
  return out;
}

qkv::Tensor fused(const qkv::Tensor& q, const qkv::Tensor& k, const qkv::Tensor& v) {
  qkv::ops::AttentionInput input;
  input.q = q;
  input.k = k;
  input.v = v;
  input.heads_first = true;
  return qkv::ops::attention(input, {}).out;
}

template <class F>
double best_seconds(int times, const F& f) {
  double best = 1e30;
  for (int i = 0; i < times; ++i) {
    const auto start = std::chrono::steady_clock::now();
    f();
    best = std::min(
        best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

// Largest difference over largest value.
template <class T>
double error(const qkv::Tensor& a, const qkv::Tensor& b) {
  double worst = 0, largest = 0;
  for (std::int64_t i = 0; i < a.numel(); ++i) {
    worst = std::max(
        worst, std::abs(static_cast<double>(a.data<T>()[i]) - static_cast<double>(b.data<T>()[i])));
    largest = std::max(largest, std::abs(static_cast<double>(a.data<T>()[i])));
  }
  return worst / largest;
}

// Prints one line; false if the two disagree by more than `bound`.
template <class T>
bool compare(std::int64_t n, double bound) {
  const qkv::Tensor q = made_up<T>(n, 0.1), k = made_up<T>(n, 1.2), v = made_up<T>(n, 2.3);
  qkv::Tensor slow, fast;
  const double slow_seconds = best_seconds(2, [&] { slow = manual<T>(q, k, v); });
  const double fast_seconds = best_seconds(3, [&] { fast = fused(q, k, v); });
  const double difference = error<T>(slow, fast);
  std::printf("%-8s %6lld %12.2e %12.2f %12.2f %9.1fx\n", qkv::dtype_name(qkv::dtype_of<T>()),
              static_cast<long long>(n), difference, 1e3 * slow_seconds, 1e3 * fast_seconds,
              slow_seconds / fast_seconds);
  return difference < bound;
}

}  // namespace

int main() {
  std::printf(
      "%lld heads of size %lld, forward, %d thread(s) for the fused one, one for the manual "
      "one\n\n",
      static_cast<long long>(kHeads), static_cast<long long>(kHeadSize), qkv::num_threads());
  std::printf("%-8s %6s %12s %12s %12s %10s\n", "type", "N", "error", "manual ms", "fused ms",
              "ratio");
  bool good = true;
  for (const std::int64_t n : {64, 256, 512}) good &= compare<float>(n, 5e-6);
  for (const std::int64_t n : {64, 256}) good &= compare<double>(n, 1e-13);
  std::printf(
      "\nerror: largest difference over largest value. Times depend on the machine, errors hardly "
      "do.\n");
  return good ? 0 : 1;
}
