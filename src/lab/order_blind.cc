// order-blind: an encoder over a text and over the same tokens in another order.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include <fmt/format.h>

#include "base/random.h"
#include "lab/lab.h"
#include "models/encoder_classifier.h"

namespace qkv::inline v0::lab {

namespace {

constexpr std::int64_t kLength = 24;

EncoderConfig small_encoder(PositionKind positions) {
  EncoderConfig config;
  config.d_model = 64;
  config.num_layers = 2;
  config.num_heads = 4;
  config.d_ff = 128;
  config.vocab_size = 100;
  config.max_positions = kLength;
  config.positions = positions;
  config.labels = {"a", "b"};
  return config;
}

Tensor hidden_states(const EncoderClassifier& model, const std::vector<std::int32_t>& ids) {
  const std::int64_t length = static_cast<std::int64_t>(ids.size());
  const RaggedLayout layout = RaggedLayout::from_lengths({&length, 1});
  Context context;
  context.layout = &layout;
  return model.encode(context, ids).value();
}

// Largest change of a token's state when the others move around it, relative to the largest state.
double change_by_order(const EncoderClassifier& model, Random& random) {
  std::vector<std::int32_t> ids(kLength), permuted(kLength);
  for (auto& id : ids) id = static_cast<std::int32_t>(random.below(100));
  std::vector<std::size_t> order(kLength);
  std::iota(order.begin(), order.end(), std::size_t{0});
  random.shuffle(order.begin(), order.end());
  for (std::size_t i = 0; i < order.size(); ++i) permuted[i] = ids[order[i]];
  const Tensor straight = hidden_states(model, ids), moved = hidden_states(model, permuted);
  const std::int64_t width = straight.dim(1);
  double largest = 0, difference = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const float* a = straight.data<float>() + static_cast<std::int64_t>(order[i]) * width;
    const float* b = moved.data<float>() + static_cast<std::int64_t>(i) * width;
    for (std::int64_t c = 0; c < width; ++c) {
      largest = std::max(largest, std::abs(static_cast<double>(a[c])));
      difference = std::max(difference, std::abs(static_cast<double>(a[c]) - b[c]));
    }
  }
  return difference / largest;
}

}  // namespace

Result run_order_blind(const Options& options) {
  Result result;
  result.table.columns = {"positions", "largest change of a token's state"};
  result.measured = Json::object();
  double without = 0, least_with = INFINITY;
  for (const PositionKind kind : {PositionKind::kNone, PositionKind::kSinusoidal,
                                  PositionKind::kLearned, PositionKind::kRope}) {
    const EncoderClassifier model(small_encoder(kind), options.seed);
    Random random(options.seed);
    double change = 0;
    for (int text = 0; text < (options.full ? 50 : 5); ++text)
      change = std::max(change, change_by_order(model, random));
    if (kind == PositionKind::kNone) {
      without = change;
    } else {
      least_with = std::min(least_with, change);
    }
    result.table.rows.push_back({position_kind_name(kind), fmt::format("{:.2e}", change)});
    result.measured[position_kind_name(kind)] = change;
  }
  result.holds = without < 1e-5 && least_with > 1e-3 ? Holds::kTrue : Holds::kFalse;
  result.verdict = fmt::format(
      "after undoing the permutation the states differ by {:.1e} without positions (rounding) and "
      "by {:.1e} or more with any kind of position, relative to the largest state",
      without, least_with);
  return result;
}

}  // namespace qkv::inline v0::lab
