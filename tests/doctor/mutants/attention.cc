#include "doctor/mutants/attention.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <stdexcept>
#include <thread>

#include "base/random.h"

namespace qkv::testing {
namespace {

using doctor::AttentionAnswer;
using doctor::AttentionCall;
using doctor::MaskStyle;

constexpr double kBlocked = -std::numeric_limits<double>::infinity();

// Memory of the mutant between calls.
struct State {
  std::uint64_t calls = 0;
  double last = 0;
};

double rounded(double value, int bits) {
  if (!std::isfinite(value) || value == 0) return value;
  int exponent = 0;
  const double fraction = std::frexp(value, &exponent);
  return std::ldexp(std::nearbyint(std::ldexp(fraction, bits)), exponent - bits);
}

template <class T>
class Attention {
 public:
  Attention(const Mutant& mutant, Fault fault, const AttentionCall& call, State& state)
      : mutant_(mutant), fault_(fault), call_(call), state_(state) {
    batch_ = call.q.dim(0), heads_ = call.q.dim(1), n_ = call.q.dim(2), d_ = call.q.dim(3);
    kv_heads_ = call.k.dim(1), s_ = call.k.dim(2), dv_ = call.v.dim(3);
  }

  AttentionAnswer run() {
    compute();
    AttentionAnswer answer;
    answer.out = Tensor::zeros({batch_, heads_, n_, dv_}, dtype_of<T>());
    T* out = answer.out.data<T>();
    for (std::int64_t b = 0; b < batch_; ++b)
      for (std::int64_t h = 0; h < heads_; ++h)
        for (std::int64_t i = 0; i < n_; ++i)
          for (std::int64_t c = 0; c < dv_; ++c) *out++ = static_cast<T>(output(b, h, i, c));
    return answer;
  }

  ops::AttentionGradients gradients(const Tensor& dout) {
    compute();
    const auto zeros = [&](const Tensor& like) {
      return Tensor::zeros(like.shape(), dtype_of<T>());
    };
    ops::AttentionGradients g{zeros(call_.q), zeros(call_.k), zeros(call_.v)};
    for (std::int64_t b = 0; b < batch_; ++b)
      for (std::int64_t h = 0; h < heads_; ++h)
        for (std::int64_t i = 0; i < n_; ++i) row_gradient(b, h, i, dout, g);
    if (is(Fault::kGradientOfQueriesMissing)) g.dq = Tensor();
    if (is(Fault::kGradientOfValuesMissing)) g.dv.fill(0);
    return g;
  }

 private:
  bool is(Fault fault) const { return fault_ == fault; }

  double read(const Tensor& x, std::int64_t b, std::int64_t h, std::int64_t i,
              std::int64_t c) const {
    std::int64_t at = b * x.stride(0) + h * x.stride(1) + i * x.stride(2) + c;
    if (is(Fault::kIgnoresStrides)) at = ((b * x.dim(1) + h) * x.dim(2) + i) * x.dim(3) + c;
    const double value = x.data<T>()[at];
    return is(Fault::kBfloat16) ? rounded(value, 8) : value;
  }

  std::int64_t group(std::int64_t h) const {
    if (is(Fault::kHeadsTiled)) return h % kv_heads_;
    if (is(Fault::kHeadsFirstOnly)) return heads_ == kv_heads_ ? h : 0;
    return h * kv_heads_ / heads_;
  }

  double scale() const {
    const double size = static_cast<double>(d_);
    double factor = 1 / std::sqrt(size);
    if (is(Fault::kNoScale)) factor = 1;
    if (is(Fault::kScaleByInverseSize)) factor = 1 / size;
    if (is(Fault::kScaleByWidth)) factor = 1 / std::sqrt(size * static_cast<double>(heads_));
    if (is(Fault::kScaleTwice)) factor *= factor;
    if (is(Fault::kUniform)) factor = 0;
    if (is(Fault::kDecodeWithoutScale) && n_ == 1 && s_ > 1) factor = 1;
    if (is(Fault::kLengthInScale) || (is(Fault::kPaddingInScale) && call_.mask.defined()))
      factor *= std::log(static_cast<double>(s_ + 1)) / std::log(10.0);
    return factor;
  }

  double norm(const Tensor& x, std::int64_t b, std::int64_t h, std::int64_t i) const {
    double sum = 0;
    for (std::int64_t c = 0; c < d_; ++c) sum += read(x, b, h, i, c) * read(x, b, h, i, c);
    return std::sqrt(sum);
  }

  double score(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
    if (is(Fault::kBatchMixed)) b = (b + 1) % batch_;
    if (is(Fault::kHeadsMixed)) h = (h + 1) % heads_;
    if (is(Fault::kQueryAndKeySwapped) && n_ == s_) std::swap(i, j);
    const std::int64_t g = group(h);
    double sum = 0;
    for (std::int64_t c = 0; c < d_; ++c)
      sum += read(call_.q, b, h, i, c) * read(call_.k, b, g, j, c);
    if (is(Fault::kNormalisedQueries)) sum /= norm(call_.q, b, h, i) / 4;
    if (is(Fault::kNormalisedKeys)) sum /= norm(call_.k, b, g, j) / 4;
    return sum * scale();
  }

  // Whether the mask shows the key, and what it adds.
  bool kept(std::int64_t b, std::int64_t i, std::int64_t j, double* bias) const {
    *bias = 0;
    if (!call_.mask.defined() || is(Fault::kMaskIgnored)) return true;
    if (is(Fault::kCausalReplacesMask) && causal()) return true;
    if (is(Fault::kMaskOfFirstSequence)) b = 0;
    if (is(Fault::kMaskTransposed) && n_ == s_) std::swap(i, j);
    const std::int64_t at = (b * n_ + i) * s_ + j;
    if (mutant_.mask == MaskStyle::kAdditive) {
      const double value = call_.mask.data<T>()[at];
      *bias = value == kBlocked ? 0 : value;
      return (value == kBlocked) == is(Fault::kMaskInverted);
    }
    const bool set = static_cast<const std::uint8_t*>(call_.mask.raw())[at] != 0;
    return set == ((mutant_.mask == MaskStyle::kKeep) != is(Fault::kMaskInverted));
  }

  bool causal() const { return call_.causal.value_or(false); }
  bool past(std::int64_t i, std::int64_t j) const {
    if (!causal() || is(Fault::kCausalIgnored)) return true;
    if (is(Fault::kMaskReplacesCausal) && call_.mask.defined()) return true;
    std::int64_t at = is(Fault::kCausalTopLeft) ? i : i + s_ - n_;
    if (is(Fault::kCausalOneLate)) ++at;
    if (is(Fault::kCausalStrict)) --at;
    return j <= at;
  }
  bool near(std::int64_t i, std::int64_t j) const {
    if (!call_.window || is(Fault::kWindowIgnored)) return true;
    const std::int64_t n = *call_.window + (is(Fault::kWindowOneWide)     ? 1
                                            : is(Fault::kWindowOneNarrow) ? -1
                                                                          : 0);
    return std::abs(i + s_ - n_ - j) < n;
  }

  double edited(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
    double bias = 0;
    const bool keep = kept(b, i, j, &bias), before = past(i, j);
    const double value = score(b, h, i, j) + bias;
    if (is(Fault::kDecodeForgetsNewest) && n_ == 1 && s_ > 1 && j == s_ - 1) return kBlocked;
    if (is(Fault::kMasksOr) && call_.mask.defined() && causal())
      return keep || before ? value : kBlocked;
    if (is(Fault::kMaskAsNumber)) return before ? value + (keep ? 1 : 0) : kBlocked;
    if (!near(i, j)) return kBlocked;
    if (!before) return is(Fault::kCausalZeroFilled) ? 0 : kBlocked;
    if (keep || is(Fault::kMaskAfterSoftmax)) return value;
    switch (fault_) {
      case Fault::kMaskZeroFilled:
        return 0;
      case Fault::kMaskMinusTen:
        return value - 10;
      case Fault::kMaskMinus1e4:
        return -1e4;
      case Fault::kMaskMinus1e9:
      case Fault::kEmptyRowMean:
        return is(Fault::kEmptyRowMean) ? -1e38 : -1e9;
      default:
        return kBlocked;
    }
  }

  double& weight(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
    return weights_[static_cast<std::size_t>(((b * heads_ + h) * n_ + i) * s_ + j)];
  }

  void compute() {
    if (is(Fault::kThrows)) throw std::runtime_error("no kernel for these shapes");
    ++state_.calls;
    weights_.assign(static_cast<std::size_t>(batch_ * heads_ * n_ * s_), 0);
    for (std::int64_t b = 0; b < batch_; ++b)
      for (std::int64_t h = 0; h < heads_; ++h)
        for (std::int64_t i = 0; i < n_; ++i) softmax_row(b, h, i);
    if (is(Fault::kSoftmaxOverQueries) || is(Fault::kSoftmaxOverHeads)) other_axis();
    if (is(Fault::kSlow)) std::this_thread::sleep_for(std::chrono::milliseconds(30));
  }

  void softmax_row(std::int64_t b, std::int64_t h, std::int64_t i) {
    double most = kBlocked, sum = 0;
    for (std::int64_t j = 0; j < s_; ++j) {
      double value = edited(b, h, i, j);
      if (is(Fault::kBfloat16)) value = rounded(value, 8);
      weight(b, h, i, j) = value;
      most = std::max(most, value);
    }
    const bool empty = most == kBlocked;
    if (is(Fault::kNoMaximum) || (empty && !is(Fault::kEmptyRowNaN))) most = 0;
    std::int64_t best = 0;
    for (std::int64_t j = 0; j < s_; ++j) {
      double& w = weight(b, h, i, j);
      if (w > weight(b, h, i, best)) best = j;
      w = std::exp(static_cast<T>(w - most));
      if (is(Fault::kHalfSoftmax)) w = rounded(w, 8);
      if (is(Fault::kNoMaximum)) w = static_cast<T>(w);
      sum += w;
    }
    if (is(Fault::kPhantomKey)) sum += std::exp(-most);
    if (is(Fault::kPhantomTile)) sum += static_cast<double>((8 - s_ % 8) % 8) * std::exp(-most);
    if (is(Fault::kDividedByLength)) sum = static_cast<double>(s_);
    if (empty && !is(Fault::kEmptyRowNaN)) sum = 1;
    if (is(Fault::kOnlineWithoutRescale) && s_ > 64) {  // the first tile's weights stay too large
      for (std::int64_t j = 0; j < 64; ++j) sum += 0.5 * weight(b, h, i, j);
      for (std::int64_t j = 0; j < 64; ++j) weight(b, h, i, j) *= 1.5;
    }
    for (std::int64_t j = 0; j < s_; ++j) finish_weight(b, h, i, j, sum, best);
  }

  void finish_weight(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j, double sum,
                     std::int64_t best) {
    double& w = weight(b, h, i, j);
    if (!is(Fault::kSoftmaxOverQueries) && !is(Fault::kSoftmaxOverHeads)) w /= sum;
    if (is(Fault::kHardMax)) w = j == best ? 1 : 0;
    double bias = 0;
    if (is(Fault::kMaskAfterSoftmax) && !kept(b, i, j, &bias)) w = 0;
    const auto draw = [&] {
      return philox(state_.calls,
                    {static_cast<std::uint32_t>(b), static_cast<std::uint32_t>(h),
                     static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(j)})[0];
    };
    if (is(Fault::kDropoutOnWeights)) w = draw() % 10 == 0 ? 0 : w / 0.9;
    if (is(Fault::kNoise)) w += 1e-3 * (static_cast<double>(draw()) / 4294967296.0 - 0.5);
  }

  void other_axis() {
    const bool heads = is(Fault::kSoftmaxOverHeads);
    for (std::int64_t b = 0; b < batch_; ++b)
      for (std::int64_t a = 0; a < (heads ? n_ : heads_); ++a)
        for (std::int64_t j = 0; j < s_; ++j) {
          double sum = 0;
          for (std::int64_t x = 0; x < (heads ? heads_ : n_); ++x)
            sum += heads ? weight(b, x, a, j) : weight(b, a, x, j);
          for (std::int64_t x = 0; x < (heads ? heads_ : n_); ++x)
            (heads ? weight(b, x, a, j) : weight(b, a, x, j)) /= sum;
        }
  }

  double output(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t c) {
    double sum = 0, all = 0;
    for (std::int64_t j = 0; j < s_; ++j) {
      const double v = read(call_.v, b, group(h), j, c);
      if (weight(b, h, i, j) != 0) sum += weight(b, h, i, j) * v;
      all += v;
    }
    if (is(Fault::kAllNaN)) return std::numeric_limits<double>::quiet_NaN();
    if (is(Fault::kValuesShifted)) sum += 0.25;
    if (is(Fault::kHiddenValuesAveraged) && call_.mask.defined())
      sum += 0.05 * all / static_cast<double>(s_);
    if (is(Fault::kState)) {
      sum += 0.01 * state_.last;
      state_.last = sum;
    }
    return is(Fault::kBfloat16) ? rounded(sum, 8) : sum;
  }

  void row_gradient(std::int64_t b, std::int64_t h, std::int64_t i, const Tensor& dout,
                    const ops::AttentionGradients& g) {
    const std::int64_t kv = group(h);
    std::vector<double> dw(static_cast<std::size_t>(s_), 0.0);
    double delta = 0;
    const auto at = [](const Tensor& x, std::int64_t ib, std::int64_t ih, std::int64_t row,
                       std::int64_t c) -> T& {
      return x.data<T>()[((ib * x.dim(1) + ih) * x.dim(2) + row) * x.dim(3) + c];
    };
    for (std::int64_t j = 0; j < s_; ++j) {
      double& value = dw[static_cast<std::size_t>(j)];
      for (std::int64_t c = 0; c < dv_; ++c) {
        value += at(dout, b, h, i, c) * read(call_.v, b, kv, j, c);
        at(g.dv, b, kv, j, c) += static_cast<T>(weight(b, h, i, j) * at(dout, b, h, i, c));
      }
      delta += value * weight(b, h, i, j);
    }
    if (is(Fault::kGradientWithoutRowSum)) delta = 0;
    for (std::int64_t j = 0; j < s_; ++j) {
      double w = weight(b, h, i, j), bias = 0;
      if (is(Fault::kGradientOfMaskedKeys) && !kept(b, i, j, &bias)) w = 0.1;
      const double ds = w * (dw[static_cast<std::size_t>(j)] - delta) *
                        (is(Fault::kGradientWithoutScale) ? 1 : scale());
      for (std::int64_t c = 0; c < d_; ++c) {
        at(g.dq, b, h, i, c) += static_cast<T>(ds * read(call_.k, b, kv, j, c));
        at(g.dk, b, kv, j, c) += static_cast<T>(ds * read(call_.q, b, h, i, c));
      }
    }
  }

  const Mutant& mutant_;
  Fault fault_;
  const AttentionCall& call_;
  State& state_;
  std::int64_t batch_ = 0, heads_ = 0, n_ = 0, d_ = 0, kv_heads_ = 0, s_ = 0, dv_ = 0;
  std::vector<double> weights_;
};

}  // namespace

const std::vector<Mutant>& attention_mutants() {
  using enum Fault;
  static const std::vector<Mutant> list{
      {kNoScale, "no_scale", "scale"},
      {kScaleByInverseSize, "scale_one_over_size", "scale"},
      {kScaleByWidth, "scale_by_model_width", "scale"},
      {kScaleTwice, "scale_twice", "scale"},
      {kUniform, "scale_zero", "scale"},
      {kSoftmaxOverQueries, "softmax_over_queries", "rows-sum"},
      {kSoftmaxOverHeads, "softmax_over_heads", "rows-sum"},
      {kDividedByLength, "divided_by_length", "rows-sum"},
      {kPhantomKey, "phantom_key", "rows-sum"},
      {kPhantomTile, "phantom_keys_of_a_padded_tile", "rows-sum"},
      {kOnlineWithoutRescale, "online_softmax_without_rescale", "reference"},
      {kValuesShifted, "constant_added_to_output", "reference"},
      {kQueryAndKeySwapped, "queries_and_keys_swapped", "reference"},
      {kHardMax, "hard_max", "saturated"},
      {kNormalisedQueries, "normalised_queries", "normalised-qk"},
      {kNormalisedKeys, "normalised_keys", "normalised-qk"},
      {kBatchMixed, "scores_of_the_next_sequence", "batch-mates"},
      {kHeadsMixed, "scores_of_the_next_head", "batch-mates"},
      {kDropoutOnWeights, "dropout_alive", "dropout-alive"},
      {kNoise, "noise", "nondeterminism"},
      {kState, "state_between_calls", "nondeterminism"},
      {kBfloat16, "bfloat16_inside", "dtype-drift"},
      {kHalfSoftmax, "coarse_softmax", "dtype-drift"},
      {kNoMaximum, "no_maximum_subtracted", "non-finite"},
      {kWrongShape, "tokens_first_output", "shape"},
      {kThrows, "throws", "exception"},
      {kAllNaN, "all_nan", "non-finite"},
      {kSlow, "slow", "exception"},
      {kIgnoresStrides, "ignores_strides", "views"},
      {kWritesInputs, "writes_inputs", "views"},
      {kMaskIgnored, "mask_ignored", "mask-ignored"},
      {kMaskIgnored, "additive_mask_ignored", "mask-ignored", MaskStyle::kAdditive},
      {kMaskInverted, "mask_inverted", "mask-polarity"},
      {kMaskInverted, "block_mask_inverted", "mask-polarity", MaskStyle::kBlock},
      {kMaskZeroFilled, "mask_zero_filled", "mask-value"},
      {kMaskZeroFilled, "additive_mask_zero_filled", "mask-value", MaskStyle::kAdditive},
      {kMaskMinusTen, "mask_minus_ten", "mask-value"},
      {kMaskMinus1e4, "mask_minus_1e4", "mask-value"},
      {kMaskMinus1e9, "mask_minus_1e9", "mask-value", MaskStyle::kBlock},
      {kMaskAsNumber, "mask_added_as_number", "mask-value"},
      {kMaskAfterSoftmax, "mask_after_softmax", "rows-sum"},
      {kMaskOfFirstSequence, "mask_of_the_first_sequence", "batch-mates"},
      {kMaskTransposed, "mask_transposed", "padding-leak"},
      {kHiddenValuesAveraged, "hidden_values_averaged_in", "padding-leak"},
      {kLengthInScale, "length_in_scale", "scale"},
      {kPaddingInScale, "padded_length_in_scale", "padding-amount"},
      {kEmptyRowNaN, "empty_row_nan", "empty-row"},
      {kEmptyRowMean, "empty_row_mean", "empty-row"},
      {kMasksOr, "masks_joined_by_or", "mask-combination"},
      {kMaskReplacesCausal, "mask_replaces_causal", "mask-combination"},
      {kCausalReplacesMask, "causal_replaces_mask", "mask-combination"},
      {kCausalIgnored, "causal_ignored", "future-leak"},
      {kCausalOneLate, "causal_sees_the_next_token", "future-leak"},
      {kCausalStrict, "causal_without_itself", "causal-corner"},
      {kCausalTopLeft, "causal_top_left", "causal-corner"},
      {kCausalZeroFilled, "causal_zero_filled", "mask-value"},
      {kWindowOneWide, "window_one_wide", "window-edge", MaskStyle::kKeep, true},
      {kWindowOneNarrow, "window_one_narrow", "window-edge", MaskStyle::kKeep, true},
      {kWindowIgnored, "window_ignored", "window-edge", MaskStyle::kKeep, true},
      {kHeadsTiled, "heads_tiled", "head-groups", MaskStyle::kKeep, false, 2},
      {kHeadsFirstOnly, "first_head_for_all", "head-groups", MaskStyle::kKeep, false, 2},
      {kDecodeForgetsNewest, "decode_forgets_newest_key", "cache"},
      {kDecodeWithoutScale, "decode_without_scale", "cache"},
      {kGradientWithoutScale, "gradient_without_scale", "gradient"},
      {kGradientWithoutRowSum, "gradient_without_row_sum", "gradient"},
      {kGradientOfMaskedKeys, "gradient_of_hidden_keys", "gradient"},
      {kGradientOfQueriesMissing, "gradient_of_queries_missing", "gradient-missing"},
      {kGradientOfValuesMissing, "gradient_of_values_zero", "gradient-missing"},
      {kAllScoresKept, "all_scores_kept", "quadratic-memory"},
  };
  return list;
}

doctor::AttentionUnderTest make_attention(const Mutant& mutant, bool healthy) {
  const Fault fault = healthy ? Fault::kNone : mutant.fault;
  const auto state = std::make_shared<State>();
  doctor::AttentionUnderTest f;
  f.mask = mutant.mask;
  f.takes_causal = true;
  f.takes_window = mutant.window;
  if (mutant.kv_heads > 0) f.kv_heads = mutant.kv_heads;
  if (fault == Fault::kSlow) f.time_limit = 0.02;
  f.forward = [mutant, fault, state](const AttentionCall& call) {
    AttentionAnswer answer = call.q.dtype() == DType::kFloat64
                                 ? Attention<double>(mutant, fault, call, *state).run()
                                 : Attention<float>(mutant, fault, call, *state).run();
    if (fault == Fault::kWrongShape) answer.out = answer.out.transpose(1, 2);
    if (fault == Fault::kWritesInputs && call.q.dtype() == DType::kFloat32)
      call.q.data<float>()[0] *= 0.5F;
    return answer;
  };
  f.backward = [mutant, fault, state](const AttentionCall& call, const Tensor& dout) {
    return call.q.dtype() == DType::kFloat64
               ? Attention<double>(mutant, fault, call, *state).gradients(dout)
               : Attention<float>(mutant, fault, call, *state).gradients(dout);
  };
  f.peak_bytes = [fault](const AttentionCall& call) {
    const std::int64_t rows = call.q.dim(1) * call.q.dim(2);
    return fault == Fault::kAllScoresKept ? rows * call.k.dim(2) * 4 : rows * 512;
  };
  return f;
}

}  // namespace qkv::testing
