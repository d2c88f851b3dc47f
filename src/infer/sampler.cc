#include "infer/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <unordered_map>
#include <unordered_set>

#include "base/check.h"

namespace qkv::inline v0::infer {
namespace {

constexpr float kBarred = -std::numeric_limits<float>::infinity();
// fp32 logits of probabilities that add up to p exactly may miss it by so much of it.
constexpr double kTopPRounding = 1e-6;
constexpr const char* kWhere = "sampling";

void check_ids(std::int32_t id, std::int64_t vocabulary, const char* option) {
  require<ArgumentError>(id >= 0 && id < vocabulary, kWhere,
                         "expected ids of {} in [0, {}), got {}", option, vocabulary, id);
}

// The largest logit. Lanes of their own, so that the loop is vectorised.
float checked_maximum(std::span<const float> logits) {
  constexpr std::size_t kLanes = 16;
  std::array<float, kLanes> largest;
  std::array<std::int32_t, kLanes> bad{};
  largest.fill(kBarred);
  std::size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes) {
    for (std::size_t j = 0; j < kLanes; ++j) {
      const float x = logits[i + j];
      largest[j] = x > largest[j] ? x : largest[j];
      bad[j] |= x != x ? 1 : 0;
    }
  }
  float maximum = *std::max_element(largest.begin(), largest.end());
  bool any_bad = std::any_of(bad.begin(), bad.end(), [](std::int32_t b) { return b != 0; });
  for (; i < logits.size(); ++i) {
    maximum = std::max(maximum, logits[i]);
    any_bad = any_bad || std::isnan(logits[i]);
  }
  require<NumericError>(
      !any_bad && maximum < std::numeric_limits<float>::infinity(), kWhere,
      "expected finite logits (or -inf), got NaN or infinity; the model's weights "
      "or its input are broken");
  require<NumericError>(
      maximum > kBarred, kWhere,
      "expected at least one token that may be emitted, got none; all are barred");
  return maximum;
}

// exp((logit - maximum) / temperature).
double weight_of(float logit, float maximum, double temperature) {
  const double x = (static_cast<double>(logit) - maximum) / temperature;
  return static_cast<double>(std::exp(static_cast<float>(x)));
}

struct Order {
  std::span<const float> logits;
  bool operator()(std::int32_t a, std::int32_t b) const {
    const float x = logits[static_cast<std::size_t>(a)], y = logits[static_cast<std::size_t>(b)];
    return x > y || (x == y && a < b);
  }
};

// Ids in descending order of logit, sorted as far as they are asked for.
class SortedIds {
 public:
  explicit SortedIds(std::span<const float> logits) : order_{logits}, ids_(logits.size()) {
    std::iota(ids_.begin(), ids_.end(), 0);
  }
  std::size_t size() const { return ids_.size(); }
  std::int32_t operator[](std::size_t rank) {
    while (rank >= sorted_) {
      const std::size_t next = std::min(ids_.size(), std::max<std::size_t>(64, sorted_ * 8));
      const auto from = ids_.begin() + static_cast<std::ptrdiff_t>(sorted_);
      const auto to = ids_.begin() + static_cast<std::ptrdiff_t>(next);
      if (to != ids_.end()) std::nth_element(from, to, ids_.end(), order_);
      std::sort(from, to, order_);
      sorted_ = next;
    }
    return ids_[rank];
  }

 private:
  Order order_;
  std::vector<std::int32_t> ids_;
  std::size_t sorted_ = 0;
};

bool filters(const SamplingOptions& o, std::size_t vocabulary) {
  return (o.top_k > 0 && static_cast<std::size_t>(o.top_k) < vocabulary) || o.top_p < 1 ||
         o.min_p > 0;
}

}  // namespace

void SamplingOptions::check(std::int64_t vocabulary) const {
  const auto in_range = [](bool ok, const char* name, const char* range, double value) {
    require<ArgumentError>(ok, kWhere, "expected {} {}, got {}", name, range, value);
  };
  in_range(std::isfinite(temperature) && temperature >= 0, "temperature", ">= 0", temperature);
  in_range(top_k >= 0, "top_k", ">= 0 (0: off)", static_cast<double>(top_k));
  in_range(top_p >= 0 && top_p <= 1, "top_p", "in [0, 1]", top_p);
  in_range(min_p >= 0 && min_p <= 1, "min_p", "in [0, 1]", min_p);
  in_range(std::isfinite(repetition_penalty) && repetition_penalty > 0, "repetition_penalty", "> 0",
           repetition_penalty);
  in_range(std::isfinite(presence_penalty), "presence_penalty", "to be finite", presence_penalty);
  in_range(std::isfinite(frequency_penalty), "frequency_penalty", "to be finite",
           frequency_penalty);
  for (const auto& [id, bias] : logit_bias) {
    check_ids(id, vocabulary, "logit_bias");
    in_range(!std::isnan(bias) && bias < std::numeric_limits<double>::infinity(), "logit_bias",
             "to be finite or -inf", bias);
  }
  for (const std::int32_t id : banned) check_ids(id, vocabulary, "banned");
}

bool SamplingOptions::adjusts() const {
  return !logit_bias.empty() || !banned.empty() || repetition_penalty != 1 ||
         presence_penalty != 0 || frequency_penalty != 0;
}

void adjust_logits(std::span<float> logits, std::span<const std::int32_t> prompt,
                   std::span<const std::int32_t> continuation, const SamplingOptions& options) {
  const auto at = [&](std::int32_t id) -> float& { return logits[static_cast<std::size_t>(id)]; };
  for (const auto& [id, bias] : options.logit_bias) at(id) += static_cast<float>(bias);
  for (const std::int32_t id : options.banned) at(id) = kBarred;
  if (options.repetition_penalty != 1) {
    const auto penalty = static_cast<float>(options.repetition_penalty);
    std::unordered_set<std::int32_t> seen(prompt.begin(), prompt.end());
    seen.insert(continuation.begin(), continuation.end());
    for (const std::int32_t id : seen) at(id) = at(id) > 0 ? at(id) / penalty : at(id) * penalty;
  }
  if (options.presence_penalty != 0 || options.frequency_penalty != 0) {
    std::unordered_map<std::int32_t, std::int64_t> counts;
    for (const std::int32_t id : continuation) ++counts[id];
    for (const auto& [id, count] : counts)
      at(id) -= static_cast<float>(options.presence_penalty +
                                   options.frequency_penalty * static_cast<double>(count));
  }
}

std::int32_t argmax(std::span<const float> logits) {
  const float maximum = checked_maximum(logits);
  return static_cast<std::int32_t>(std::find(logits.begin(), logits.end(), maximum) -
                                   logits.begin());
}

double log_sum_exp(std::span<const float> logits) {
  const float maximum = checked_maximum(logits);
  double sum = 0;
  for (const float x : logits) sum += static_cast<double>(std::exp(x - maximum));
  return static_cast<double>(maximum) + std::log(sum);
}

std::vector<Candidate> distribution(std::span<const float> logits, const SamplingOptions& options) {
  if (options.temperature == 0) return {{argmax(logits), 1}};
  const float maximum = checked_maximum(logits);
  const double temperature = options.temperature;
  std::size_t most = logits.size();
  if (options.top_k > 0) most = std::min(most, static_cast<std::size_t>(options.top_k));
  SortedIds ids(logits);
  const auto weight = [&](std::int32_t id) {
    return weight_of(logits[static_cast<std::size_t>(id)], maximum, temperature);
  };
  double total = 0;
  if (most == logits.size()) {
    for (const float x : logits) total += weight_of(x, maximum, temperature);
  } else {
    for (std::size_t rank = 0; rank < most; ++rank) total += weight(ids[rank]);
  }
  const double enough =
      options.top_p < 1 ? options.top_p * (1 - kTopPRounding) * total : 2 * total + 1;
  std::vector<Candidate> kept;
  double mass = 0;
  for (std::size_t rank = 0; rank < most; ++rank) {
    const double w = weight(ids[rank]);
    if (rank > 0 && (mass >= enough || w < options.min_p || w == 0)) break;
    kept.push_back({ids[rank], w});
    mass += w;
  }
  for (Candidate& c : kept) c.probability /= mass;
  return kept;
}

std::int32_t sample(std::span<const float> logits, const SamplingOptions& options, double uniform) {
  if (options.temperature == 0) return argmax(logits);
  if (filters(options, logits.size())) {
    const std::vector<Candidate> kept = distribution(logits, options);
    double left = uniform;
    for (const Candidate& c : kept) {
      left -= c.probability;
      if (left < 0) return c.id;
    }
    return kept.back().id;
  }
  const float maximum = checked_maximum(logits);
  std::vector<float> weights(logits.size());
  double total = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    weights[i] = static_cast<float>(weight_of(logits[i], maximum, options.temperature));
    total += static_cast<double>(weights[i]);
  }
  double left = uniform * total;
  std::size_t last = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] == 0) continue;
    last = i;
    left -= static_cast<double>(weights[i]);
    if (left < 0) break;
  }
  return static_cast<std::int32_t>(last);
}

}  // namespace qkv::inline v0::infer
