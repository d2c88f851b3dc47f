#include "kernels/vector.h"

#include <cmath>

namespace qkv::inline v0::kernels::reference {
namespace {

template <class T>
void add(const T* a, const T* b, T* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = a[i] + b[i];
}

template <class T>
void scale(const T* x, T* y, std::int64_t n, double factor) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = static_cast<T>(factor * x[i]);
}

template <class T>
void add_scaled(const T* x, T* y, std::int64_t n, double factor) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = static_cast<T>(y[i] + factor * x[i]);
}

template <class T>
void maximum(const T* x, T* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i)
    if (x[i] > y[i] || std::isnan(x[i])) y[i] = x[i];
}

template <class T>
void rotate(T* x, const Rotation<T>& p) {
  for (std::int64_t h = 0; h < p.heads; ++h, x += p.head_stride) {
    for (std::int64_t i = 0; i < p.half; ++i) {
      T& a = p.interleaved ? x[2 * i] : x[i];
      T& b = p.interleaved ? x[2 * i + 1] : x[i + p.half];
      const double c = p.interleaved ? p.cosines[2 * i] : p.cosines[i];
      const double s = p.sign * (p.interleaved ? p.sines[2 * i + 1] : p.sines[i]);
      const double left = a, right = b;
      a = static_cast<T>(left * c - right * s);
      b = static_cast<T>(left * s + right * c);
    }
  }
}

template <class T>
double sum_of_squares(const T* x, std::int64_t n) {
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * x[i];
  return sum;
}

template <class T>
std::int64_t find_non_finite(const T* x, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i)
    if (!std::isfinite(x[i])) return i;
  return -1;
}

template <class T>
void adamw(const AdamWChunk<T>& p) {
  for (std::int64_t i = 0; i < p.n; ++i) {
    const double g = p.scale * p.g[i];
    const double m = p.beta1 * p.m[i] + (1 - p.beta1) * g,
                 v = p.beta2 * p.v[i] + (1 - p.beta2) * g * g;
    p.m[i] = static_cast<T>(m);
    p.v[i] = static_cast<T>(v);
    p.theta[i] =
        static_cast<T>(p.decay * p.theta[i] - p.rate * m / (std::sqrt(v) * p.inverse_root + p.eps));
    if (p.zero) p.g[i] = 0;
  }
}

template <class T>
void sgd(const SgdChunk<T>& p) {
  for (std::int64_t i = 0; i < p.n; ++i) {
    double d = p.scale * p.g[i] + p.decay * p.theta[i];
    if (p.m) {
      d += p.momentum * p.m[i];
      p.m[i] = static_cast<T>(d);
    }
    p.theta[i] = static_cast<T>(p.theta[i] - p.rate * d);
  }
}

template <class T>
constexpr VectorKernels<T> kAll = {add<T>,    scale<T>,          add_scaled<T>,      maximum<T>,
                                   rotate<T>, sum_of_squares<T>, find_non_finite<T>, adamw<T>,
                                   sgd<T>};

}  // namespace

const VectorKernels<float> kVectorF32 = kAll<float>;
const VectorKernels<double> kVectorF64 = kAll<double>;

}  // namespace qkv::inline v0::kernels::reference
