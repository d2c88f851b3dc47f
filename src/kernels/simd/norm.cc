#include "kernels/norm.h"

#include "kernels/simd/vec.h"

namespace qkv::inline v0::kernels::QKV_ISA {
extern const NormKernels<float> kNorm;
namespace {

// The dropout's masks of one row: a draw serves four vectors.
class RowMasks {
 public:
  QKV_INLINE RowMasks(const DropoutRows& d, const PhiloxKeys& keys, std::int64_t row,
                      std::int64_t width)
      : draw_{keys, static_cast<std::uint32_t>(d.tokens[row]), d.samples[row], d.step, d.threshold},
        width_(width) {}
  // The mask of the vector at channel j; calls come with j = 0, kLanes, 2 kLanes, ...
  QKV_INLINE Mask next(std::int64_t j) {
    constexpr std::int64_t kDraw = 4 * kLanes;
    if (j % (2 * kDraw) == 0) {
      const auto block = static_cast<std::uint32_t>(j / 8);
      if (width_ - j > kDraw) {
        dropout_keep<2>(draw_, block, bits_);
      } else {
        dropout_keep<1>(draw_, block, bits_);
      }
    } else if (j % kDraw == 0) {
      bits_[0] = bits_[1];
    }
    const Mask m = mask_from_bits(static_cast<std::uint32_t>(bits_[0]) & ((1u << kLanes) - 1));
    bits_[0] >>= kLanes;
    return m;
  }

 private:
  DropoutDraw draw_;
  std::int64_t width_;
  std::uint64_t bits_[2] = {0, 0};
};

// How x enters: as it is, dropped by random numbers, or not at all.
enum class Drop { kNone, kSome, kAll };
QKV_INLINE Drop drop_of(const DropoutRows& d) {
  return !d.active ? Drop::kNone : d.all ? Drop::kAll : Drop::kSome;
}

// y = residual + dropout(x) for one row; residual may be null.
template <Drop kDrop>
QKV_INLINE void dropout_row(const DropoutForward<float>& p, const PhiloxKeys& keys,
                            std::int64_t r) {
  const float *x = p.x + r * p.width, *residual = p.residual ? p.residual + r * p.width : nullptr;
  float* y = p.y + r * p.width;
  const F32 factor = set(static_cast<float>(p.dropout.scale));
  const std::int64_t ahead = fetch_ahead(p.width);
  const auto body = [&](auto& masks) QKV_BODY {
    for_lanes(p.width, [&](std::int64_t j, auto lanes) QKV_BODY {
      F32 value = zero();
      if constexpr (kDrop != Drop::kAll) fetch(x + ahead, j);
      if constexpr (kDrop == Drop::kNone) value = lanes.load(x + j);
      if constexpr (kDrop == Drop::kSome) value = keep(masks.next(j), lanes.load(x + j) * factor);
      if (residual) {
        fetch(residual + ahead, j);
        value = value + lanes.load(residual + j);
      }
      lanes.store(y + j, value);
    });
  };
  if constexpr (kDrop == Drop::kSome) {
    RowMasks masks(p.dropout, keys, r, p.width);
    body(masks);
  } else {
    int none = 0;
    body(none);
  }
}

template <Drop kDrop>
void dropout_rows(const DropoutForward<float>& p) {
  const PhiloxKeys keys = philox_keys(p.dropout.key);
  for (std::int64_t r = 0; r < p.rows; ++r) dropout_row<kDrop>(p, keys, r);
}

void dropout(const DropoutForward<float>& p) {
  switch (drop_of(p.dropout)) {
    case Drop::kNone:
      return dropout_rows<Drop::kNone>(p);
    case Drop::kSome:
      return dropout_rows<Drop::kSome>(p);
    case Drop::kAll:
      return dropout_rows<Drop::kAll>(p);
  }
}

// Sum of (x - pivot - delta)^2 in double: for rows whose squares leave fp32's range.
double wide_squares(const float* x, std::int64_t width, float pivot, float delta) {
  double total = 0;
  for (std::int64_t j = 0; j < width; ++j) {
    const double d =
        static_cast<double>(x[j]) - static_cast<double>(pivot) - static_cast<double>(delta);
    total += d * d;
  }
  return total;
}

// The mean is kept as the row's first value and the mean distance from it: constant rows give exact
// zeros, and a large common offset costs no digits.
struct RowMean {
  float pivot = 0, delta = 0, mean = 0;  // mean: the sum of the two, rounded once
};

QKV_INLINE RowMean row_mean(const float* x, std::int64_t width) {
  const F32 pivot = set(x[0]);
  const F32 total = sum_lanes(width, [&](std::int64_t j, auto lanes, F32& part) QKV_BODY {
    part = part + lanes.only(lanes.load(x + j) - pivot);
  });
  const double delta = sum(widen_low(total) + widen_high(total)) / static_cast<double>(width);
  return {x[0], static_cast<float>(delta), static_cast<float>(static_cast<double>(x[0]) + delta)};
}

QKV_INLINE float row_rstd(const float* x, std::int64_t width, RowMean mean, double eps) {
  const F32 pivot = set(mean.pivot), delta = set(mean.delta);
  const F32 total = sum_lanes(width, [&](std::int64_t j, auto lanes, F32& part) QKV_BODY {
    const F32 d = lanes.only(lanes.load(x + j) - pivot - delta);
    part = fma(d, d, part);
  });
  double squares = static_cast<double>(sum(total));
  if (!(squares < 1e38)) squares = wide_squares(x, width, mean.pivot, mean.delta);
  return static_cast<float>(1 / __builtin_sqrt(squares / static_cast<double>(width) + eps));
}

void normalise_row(const NormForward<float>& p, const float* s, std::int64_t r) {
  const RowMean mean = p.rms ? RowMean{} : row_mean(s, p.width);
  const float inverse = row_rstd(s, p.width, mean, p.eps);
  if (p.mean) p.mean[r] = mean.mean;
  p.rstd[r] = inverse;
  const F32 pivot = set(mean.pivot), delta = set(mean.delta), rstd = set(inverse);
  float* y = p.y + r * p.width;
  const std::int64_t ahead = fetch_ahead(p.width);
  for_lanes(p.width, [&](std::int64_t j, auto lanes) QKV_BODY {
    if (!p.residual) fetch(s + ahead, j);
    const F32 scaled = (lanes.load(s + j) - pivot - delta) * rstd;
    const F32 gamma = lanes.load(p.gamma + j);
    lanes.store(y + j, p.beta ? fma(scaled, gamma, lanes.load(p.beta + j)) : scaled * gamma);
  });
}

template <Drop kDrop>
void add_norm_rows(const NormForward<float>& p) {
  const DropoutForward<float> sum{p.rows, p.width, p.x, p.residual, p.sum, p.dropout};
  const PhiloxKeys keys = philox_keys(p.dropout.key);
  for (std::int64_t r = 0; r < p.rows; ++r) {
    dropout_row<kDrop>(sum, keys, r);
    normalise_row(p, p.sum + r * p.width, r);
  }
}

void forward(const NormForward<float>& p) {
  if (!p.residual) {
    for (std::int64_t r = 0; r < p.rows; ++r) normalise_row(p, p.x + r * p.width, r);
    return;
  }
  switch (drop_of(p.dropout)) {
    case Drop::kNone:
      return add_norm_rows<Drop::kNone>(p);
    case Drop::kSome:
      return add_norm_rows<Drop::kSome>(p);
    case Drop::kAll:
      return add_norm_rows<Drop::kAll>(p);
  }
}

// dx = rstd (g - mean(g) - xhat mean(g xhat)) with g = dy gamma and xhat = (x - mean) rstd; mean(g)
// only for layer. kRows rows at a time: they share the loads of gamma and the sums over rows.
template <int kRows>
void backward_rows(const NormBackward<float>& p, std::int64_t first) {
  const float *dy = p.dy + first * p.width, *x = p.x + first * p.width;
  F32 mean[kRows], rstd[kRows], sum_g[kRows], sum_gx[kRows];
  for (int r = 0; r < kRows; ++r) {
    mean[r] = set(p.rms ? 0.0f : p.mean[first + r]);
    rstd[r] = set(p.rstd[first + r]);
    sum_g[r] = sum_gx[r] = zero();
  }
  for_lanes(p.width, [&](std::int64_t j, auto lanes) QKV_BODY {
    const F32 gamma = lanes.load(p.gamma + j);
    F32 dgamma = zero(), dbeta = zero();
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const F32 d = lanes.load(dy + r * p.width + j),
                xhat = lanes.only((lanes.load(x + r * p.width + j) - mean[r]) * rstd[r]);
      const F32 g = d * gamma;
      sum_g[r] = sum_g[r] + g;
      sum_gx[r] = fma(g, xhat, sum_gx[r]);
      dgamma = fma(d, xhat, dgamma);
      dbeta = dbeta + d;
    }
    if (p.dgamma) lanes.store(p.dgamma + j, lanes.load(p.dgamma + j) + dgamma);
    if (p.dbeta) lanes.store(p.dbeta + j, lanes.load(p.dbeta + j) + dbeta);
  });
  const auto width = static_cast<float>(p.width);
  for (int r = 0; r < kRows; ++r) {
    const F32 mean_g = set(p.rms ? 0.0f : sum(sum_g[r]) / width),
              mean_gx = set(sum(sum_gx[r]) / width);
    const std::int64_t row = r * p.width;
    float* dx = p.dx + first * p.width + row;
    const float* add = p.add ? p.add + first * p.width + row : nullptr;
    for_lanes(p.width, [&](std::int64_t j, auto lanes) QKV_BODY {
      const F32 g = lanes.load(dy + row + j) * lanes.load(p.gamma + j),
                xhat = (lanes.load(x + row + j) - mean[r]) * rstd[r];
      const F32 d = rstd[r] * fnma(xhat, mean_gx, g - mean_g);
      lanes.store(dx + j, add ? d + lanes.load(add + j) : d);
    });
  }
}

void backward(const NormBackward<float>& p) {
  for (std::int64_t j = 0; p.dgamma && j < p.width; ++j) p.dgamma[j] = 0;
  for (std::int64_t j = 0; p.dbeta && j < p.width; ++j) p.dbeta[j] = 0;
  constexpr int kTogether = kVectorRegisters == 32 ? 4 : 2;
  std::int64_t r = 0;
  for (; r + kTogether <= p.rows; r += kTogether) backward_rows<kTogether>(p, r);
  for (; r < p.rows; ++r) backward_rows<1>(p, r);
}

}  // namespace

const NormKernels<float> kNorm = {forward, backward, dropout};

}  // namespace qkv::inline v0::kernels::QKV_ISA
