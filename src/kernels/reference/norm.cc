#include "kernels/norm.h"

#include <cmath>

#include "base/random.h"

namespace qkv::inline v0::kernels::reference {
namespace {

// The factor of one element: 0 if dropped, 1 / (1 - p) if kept.
double dropout_factor(const DropoutRows& d, std::int64_t row, std::int64_t channel) {
  if (!d.active) return 1;
  if (d.all) return 0;
  const auto token = static_cast<std::uint32_t>(d.tokens[row]);
  const PhiloxBlock block =
      philox(d.key, {static_cast<std::uint32_t>(channel / 8), token, d.samples[row], d.step});
  const std::uint32_t word = block[static_cast<std::size_t>(channel % 8 / 2)];
  return ((word >> (channel % 2 * 16)) & 0xFFFFu) < d.threshold ? 0 : d.scale;
}

// residual + dropout(x). A dropped element is not read: its NaN does not count.
template <class T>
T combine(const DropoutRows& d, std::int64_t row, std::int64_t channel, T x, const T* residual) {
  const double factor = dropout_factor(d, row, channel);
  const T kept = factor == 0 ? T(0) : static_cast<T>(x * factor);
  return residual ? *residual + kept : kept;
}

template <class T>
void dropout(const DropoutForward<T>& p) {
  for (std::int64_t r = 0; r < p.rows; ++r) {
    for (std::int64_t j = 0; j < p.width; ++j) {
      const std::int64_t at = r * p.width + j;
      p.y[at] = combine(p.dropout, r, j, p.x[at], p.residual ? p.residual + at : nullptr);
    }
  }
}

template <class T>
void norm_row(const NormForward<T>& p, const T* s, std::int64_t r) {
  double mean = 0, square = 0;
  if (!p.rms) {
    for (std::int64_t j = 0; j < p.width; ++j) mean += s[j];
    mean /= static_cast<double>(p.width);
    p.mean[r] = static_cast<T>(mean);
  }
  for (std::int64_t j = 0; j < p.width; ++j) square += (s[j] - mean) * (s[j] - mean);
  const double rstd = 1 / std::sqrt(square / static_cast<double>(p.width) + p.eps);
  p.rstd[r] = static_cast<T>(rstd);
  for (std::int64_t j = 0; j < p.width; ++j) {
    const double y = (s[j] - mean) * rstd * p.gamma[j] + (p.beta ? p.beta[j] : T(0));
    p.y[r * p.width + j] = static_cast<T>(y);
  }
}

template <class T>
void forward(const NormForward<T>& p) {
  for (std::int64_t r = 0; r < p.rows; ++r) {
    const T* s = p.x + r * p.width;
    if (p.residual) {
      for (std::int64_t j = 0; j < p.width; ++j)
        p.sum[r * p.width + j] = combine(p.dropout, r, j, s[j], p.residual + r * p.width + j);
      s = p.sum + r * p.width;
    }
    norm_row(p, s, r);
  }
}

// With xhat = (x - mean) rstd and g = dy gamma: dx = rstd (g - mean(g) - xhat mean(g xhat));
// mean(g) only for layer.
template <class T>
void backward(const NormBackward<T>& p) {
  const auto width = static_cast<double>(p.width);
  for (std::int64_t r = 0; r < p.rows; ++r) {
    const T *dy = p.dy + r * p.width, *x = p.x + r * p.width;
    const double mean = p.rms ? 0.0 : static_cast<double>(p.mean[r]), rstd = p.rstd[r];
    double mean_g = 0, mean_gx = 0;
    for (std::int64_t j = 0; j < p.width; ++j) {
      const double g = static_cast<double>(dy[j]) * p.gamma[j];
      mean_g += g;
      mean_gx += g * (x[j] - mean) * rstd;
    }
    mean_g = p.rms ? 0 : mean_g / width;
    mean_gx /= width;
    for (std::int64_t j = 0; j < p.width; ++j) {
      const double g = static_cast<double>(dy[j]) * p.gamma[j], xhat = (x[j] - mean) * rstd;
      const double dx = rstd * (g - mean_g - xhat * mean_gx);
      p.dx[r * p.width + j] = static_cast<T>(p.add ? dx + p.add[r * p.width + j] : dx);
    }
  }
  for (std::int64_t j = 0; j < p.width; ++j) {
    double dgamma = 0, dbeta = 0;
    for (std::int64_t r = 0; r < p.rows; ++r) {
      const double dy = p.dy[r * p.width + j], mean = p.rms ? 0.0 : static_cast<double>(p.mean[r]);
      dgamma += dy * (p.x[r * p.width + j] - mean) * p.rstd[r];
      dbeta += dy;
    }
    if (p.dgamma) p.dgamma[j] = static_cast<T>(dgamma);
    if (p.dbeta) p.dbeta[j] = static_cast<T>(dbeta);
  }
}

}  // namespace

const NormKernels<float> kNormF32 = {forward<float>, backward<float>, dropout<float>};
const NormKernels<double> kNormF64 = {forward<double>, backward<double>, dropout<double>};

}  // namespace qkv::inline v0::kernels::reference
