#include "doctor/mutants/model.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <stdexcept>

#include "base/random.h"

namespace qkv::testing {
namespace {

using doctor::ModelCall;

constexpr std::int64_t kWidth = 8, kLayers = 2, kVocab = 50, kPositions = 32;
constexpr double kBlocked = -std::numeric_limits<double>::infinity();

using Rows = std::vector<std::vector<double>>;  // [N][C]

// Fixed random matrices and tables.
struct Weights {
  std::vector<double> token, position, q[kLayers], k[kLayers], v[kLayers];
  Weights() {
    Random random(17);
    const auto draw = [&](std::int64_t count, double size) {
      std::vector<double> x;
      for (std::int64_t i = 0; i < count; ++i) x.push_back(size * random.normal());
      return x;
    };
    token = draw(kVocab * kWidth, 1);
    position = draw(kPositions * kWidth, 1);
    for (auto* list : {&q, &k, &v})
      for (auto& matrix : *list) matrix = draw(kWidth * kWidth, 0.4);
  }
};

class Model {
 public:
  Model(ModelFault fault, bool causal, std::uint64_t draws)
      : fault_(fault), causal_(causal), draws_(draws) {}

  Tensor run(const ModelCall& call, std::int64_t chunk_shift = 0) const {
    const std::int64_t batch = call.ids.dim(0), n = call.ids.dim(1);
    if (is(ModelFault::kThrows)) throw std::runtime_error("no such model");
    Tensor out = Tensor::zeros({batch, n, kWidth});
    for (std::int64_t b = 0; b < batch; ++b) {
      const Rows x = sequence(call, b, n, chunk_shift);
      for (std::int64_t i = 0; i < n; ++i)
        for (std::int64_t c = 0; c < kWidth; ++c)
          out.data<float>()[(b * n + i) * kWidth + c] =
              static_cast<float>(x[static_cast<std::size_t>(i)][static_cast<std::size_t>(c)]);
    }
    if (is(ModelFault::kRoundsToBfloat16)) return out.to(DType::kBFloat16).to(DType::kFloat32);
    if (is(ModelFault::kBatchMean)) mix_batch(out);
    if (is(ModelFault::kAllNaN)) out.fill(std::numeric_limits<double>::quiet_NaN());
    return is(ModelFault::kWrongShape) ? out.transpose(0, 1) : out;
  }

 private:
  bool is(ModelFault fault) const { return fault_ == fault; }

  static void mix_batch(const Tensor& out) {
    const std::int64_t per_row = out.dim(1) * kWidth;
    float* x = out.data<float>();
    for (std::int64_t i = 0; i < per_row; ++i) {
      float mean = 0;
      for (std::int64_t b = 0; b < out.dim(0); ++b) mean += x[b * per_row + i];
      mean /= static_cast<float>(out.dim(0));
      for (std::int64_t b = 0; b < out.dim(0); ++b) x[b * per_row + i] -= 0.5F * mean;
    }
  }

  std::int64_t position(std::int64_t i, std::int64_t n) const {
    if (is(ModelFault::kPositionsFromEnd)) return n - 1 - i;
    if (is(ModelFault::kPositionsFromOne)) {
      if (i + 1 >= kPositions) throw std::out_of_range("position 32 of a table of 32");
      return i + 1;
    }
    if (is(ModelFault::kPositionsCutOff)) return std::min<std::int64_t>(i, 15);
    if (is(ModelFault::kPositionsInBfloat16)) return i < 16 ? i : i / 2 * 2;  // as 3 bits would
    return i;
  }

  Rows sequence(const ModelCall& call, std::int64_t b, std::int64_t n, std::int64_t shift) const {
    const std::int64_t* ids = call.ids.data<std::int64_t>() + b * n;
    const std::int64_t* mask = call.attention_mask.data<std::int64_t>() + b * n;
    Rows x(static_cast<std::size_t>(n), std::vector<double>(kWidth, 0.0));
    std::int64_t next = 0;  // positions count real tokens, if the mask is looked at
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t at = position(next, n) + (i + 1 == n ? shift : 0);
      for (std::int64_t c = 0; c < kWidth; ++c) {
        double value = weights().token[static_cast<std::size_t>(ids[i] * kWidth + c)];
        if (is(ModelFault::kEmbeddingTooSmall)) value *= 0.005;
        if (!is(ModelFault::kNoPositions))
          value += weights().position[static_cast<std::size_t>(at % kPositions * kWidth + c)];
        x[static_cast<std::size_t>(i)][static_cast<std::size_t>(c)] = value;
      }
      if (mask[i] != 0 || is(ModelFault::kMaskIgnored)) ++next;
    }
    for (std::int64_t layer = 0; layer < kLayers; ++layer) attend(x, mask, layer);
    if (is(ModelFault::kMeanOverPadding)) subtract_mean(x);
    return x;
  }

  static void subtract_mean(Rows& x) {
    for (std::size_t c = 0; c < kWidth; ++c) {
      double mean = 0;
      for (const auto& row : x) mean += row[c] / static_cast<double>(x.size());
      for (auto& row : x) row[c] -= mean;
    }
  }

  static std::vector<double> times(const std::vector<double>& matrix,
                                   const std::vector<double>& x) {
    std::vector<double> y(kWidth, 0.0);
    for (std::size_t r = 0; r < kWidth; ++r)
      for (std::size_t c = 0; c < kWidth; ++c) y[r] += matrix[r * kWidth + c] * x[c];
    return y;
  }

  double score(double value, bool real, bool past, std::int64_t layer) const {
    if (is(ModelFault::kMaskIgnored) || (is(ModelFault::kSecondLayerForgetsMask) && layer == 1))
      real = true;
    if (is(ModelFault::kMaskInverted)) real = !real;
    if (causal_ && !past && !is(ModelFault::kFutureLeak)) return kBlocked;
    if (real) return value;
    return is(ModelFault::kMaskZeroFilled) ? 0 : kBlocked;
  }

  void attend(Rows& x, const std::int64_t* mask, std::int64_t layer) const {
    const auto at = static_cast<std::size_t>(layer);
    Rows q, k, v, out = x;
    for (const auto& row : x) {
      q.push_back(times(weights().q[at], row));
      k.push_back(times(weights().k[at], row));
      v.push_back(times(weights().v[at], row));
    }
    for (std::size_t i = 0; i < x.size(); ++i) {
      std::vector<double> s;
      for (std::size_t j = 0; j < x.size(); ++j) {
        double dot = 0;
        for (std::size_t c = 0; c < kWidth; ++c) dot += q[i][c] * k[j][c];
        s.push_back(score(dot / std::sqrt(double{kWidth}), mask[j] != 0, j <= i, layer));
      }
      const double most = *std::max_element(s.begin(), s.end());
      double sum = 0;
      for (double& value : s) sum += value = most == kBlocked ? 0 : std::exp(value - most);
      for (std::size_t j = 0; j < x.size() && sum > 0; ++j)
        for (std::size_t c = 0; c < kWidth; ++c) out[i][c] += s[j] / sum * v[j][c];
      for (std::size_t c = 0; c < kWidth; ++c) {
        const auto draw =
            philox(draws_, {static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(c),
                            static_cast<std::uint32_t>(layer), 0})[0];
        if (is(ModelFault::kDropout)) out[i][c] *= draw % 10 == 0 ? 0 : 1 / 0.9;
        if (is(ModelFault::kNoise)) out[i][c] += 1e-3 * (static_cast<double>(draw) / 4294967296.0);
      }
    }
    x = out;
  }

  static const Weights& weights() {
    static const Weights kept;
    return kept;
  }

  ModelFault fault_;
  bool causal_;
  std::uint64_t draws_;
};

// Row i comes from a run over the first i + 1 tokens, as a cache would give it.
Tensor cached(ModelFault fault, const ModelCall& call, const std::vector<std::int64_t>& chunks) {
  const std::int64_t batch = call.ids.dim(0);
  Tensor out = Tensor::zeros({batch, call.ids.dim(1), kWidth});
  std::int64_t begin = 0;
  for (const std::int64_t size : chunks) {
    const std::int64_t end = begin + size;
    const ModelCall part{call.ids.narrow(1, 0, end).clone(),
                         call.attention_mask.narrow(1, 0, end).clone()};
    const bool shifted = fault == ModelFault::kCacheShiftsPositions && begin > 0;
    const Tensor run = Model(fault, true, 0).run(part, shifted ? 1 : 0);
    out.narrow(1, begin, size).copy_from(run.narrow(1, begin, size));
    begin = end;
  }
  return out;
}

// Attention maps of one layer with three heads.
std::vector<Tensor> maps(ModelFault fault, std::int64_t n) {
  Tensor w = Tensor::zeros({1, 3, n, n});
  Random random(5);
  for (std::int64_t row = 0; row < 3 * n; ++row) {
    float* x = w.data<float>() + row * n;
    float sum = 0;
    for (std::int64_t j = 0; j < n; ++j)
      sum += x[j] = static_cast<float>(std::exp(random.normal()));
    for (std::int64_t j = 0; j < n; ++j) x[j] /= sum;
  }
  if (fault == ModelFault::kHeadsAlike)
    for (const std::int64_t head : {1, 2}) w.select(1, head).copy_from(w.select(1, 0));
  return {w};
}

}  // namespace

const std::vector<ModelMutant>& model_mutants() {
  using enum ModelFault;
  static const std::vector<ModelMutant> list{
      {kThrows, "model_throws", "exception"},
      {kWrongShape, "model_tokens_first", "shape"},
      {kAllNaN, "model_all_nan", "non-finite"},
      {kNoise, "model_noise", "nondeterminism"},
      {kDropout, "model_dropout_alive", "dropout-alive"},
      {kBatchMean, "model_batch_mean", "batch-mates"},
      {kMaskIgnored, "model_mask_ignored", "mask-ignored"},
      {kMaskIgnored, "causal_model_mask_ignored", "mask-ignored", true},
      {kMaskInverted, "model_mask_inverted", "mask-polarity"},
      {kMaskZeroFilled, "model_mask_zero_filled", "padding-leak"},
      {kSecondLayerForgetsMask, "model_second_layer_forgets_mask", "padding-leak"},
      {kMeanOverPadding, "model_mean_over_padding", "padding-leak"},
      {kPositionsFromEnd, "model_positions_from_the_end", "padding-amount"},
      {kFutureLeak, "model_future_leak", "future-leak", true},
      {kNoPositions, "model_without_positions", "order-blind"},
      {kPositionsFromOne, "model_positions_from_one", "position-shift"},
      {kPositionsCutOff, "model_positions_cut_off", "position-shift"},
      {kPositionsInBfloat16, "model_positions_collide", "position-shift"},
      {kCacheShiftsPositions, "model_cache_shifts_positions", "cache", true},
      {kGradientCut, "model_gradient_cut", "gradient-missing"},
      {kEmbeddingTooSmall, "model_embedding_not_scaled", "embedding-scale"},
      {kHeadsAlike, "model_heads_alike", "heads-alike"},
      {kRoundsToBfloat16, "model_rounds_to_bfloat16", "dtype-drift"},
  };
  return list;
}

doctor::ModelUnderTest make_model(const ModelMutant& mutant, bool healthy) {
  const ModelFault fault = healthy ? ModelFault::kNone : mutant.fault;
  const bool causal = mutant.causal;
  const auto draws = std::make_shared<std::uint64_t>(0);
  doctor::ModelUnderTest f;
  f.vocab_size = kVocab;
  f.max_length = kPositions;
  f.causal = causal;
  f.forward = [fault, causal, draws](const ModelCall& call) {
    return Model(fault, causal, ++*draws).run(call);
  };
  if (causal) {
    f.cached = [fault](const ModelCall& call, const std::vector<std::int64_t>& chunks) {
      return cached(fault, call, chunks);
    };
  }
  f.attention = [fault](const ModelCall& call) { return maps(fault, call.ids.dim(1)); };
  f.widened = [causal](const ModelCall& call) {
    return Model(ModelFault::kNone, causal, 0).run(call);
  };
  if (fault != ModelFault::kNoise) f.reseed = [draws](std::uint64_t seed) { *draws = 1000 * seed; };
  f.without_gradient = [fault](const ModelCall&) {
    return fault == ModelFault::kGradientCut ? std::vector<std::string>{"layers.0.key.weight"}
                                             : std::vector<std::string>{};
  };
  return f;
}

}  // namespace qkv::testing
