// From logits to the next token: penalties, filters, one draw.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "qkv/version.h"

namespace qkv::inline v0::infer {

// Applied in this order; each default is off.
struct SamplingOptions {
  std::vector<std::pair<std::int32_t, double>> logit_bias;  // added to these ids' logits; -inf bars
  std::vector<std::int32_t> banned;                         // never emitted
  // Every distinct id of prompt and continuation: a positive logit is divided by it, a negative one
  // multiplied (Keskar et al. 2019), once however often the id occurs. > 0.
  double repetition_penalty = 1;
  // Ids of the continuation alone: logit -= presence + frequency * occurrences.
  double presence_penalty = 0, frequency_penalty = 0;
  double temperature = 0;  // logits are divided by it; 0: the largest logit, lowest id of equals
  std::int64_t top_k = 0;  // the k largest, lowest ids of equals; 0: all
  // Nucleus (Holtzman et al. 2020): in order of probability, a token is kept while the mass before
  // it is < p (less a millionth of p, for the rounding of fp32 logits); at least one is kept.
  double top_p = 1;
  double min_p = 0;  // kept are probabilities >= min_p times the largest
  // ArgumentError naming the option and its range. Ids must lie in [0, vocabulary).
  void check(std::int64_t vocabulary) const;
  bool adjusts() const;  // whether adjust_logits() would change anything
};

// Bias, bans and penalties, in place. logits: [vocabulary].
void adjust_logits(std::span<float> logits, std::span<const std::int32_t> prompt,
                   std::span<const std::int32_t> continuation, const SamplingOptions& options);

struct Candidate {
  std::int32_t id = 0;
  double probability = 0;
};
// The distribution that a token is drawn from: kept ids, most probable first (lowest id of equals);
// the probabilities sum to 1. temperature 0: one candidate. logits are those after adjust_logits().
// NumericError for NaN or +inf, and if every token is barred.
std::vector<Candidate> distribution(std::span<const float> logits, const SamplingOptions& options);

// One draw from distribution() by `uniform` in [0, 1), without sorting where nothing is filtered.
std::int32_t sample(std::span<const float> logits, const SamplingOptions& options, double uniform);

// The largest logit's id, the lowest of equals. NumericError as above.
std::int32_t argmax(std::span<const float> logits);

// log sum exp(logits), in double: log-probabilities are logits less it. NumericError as above.
double log_sum_exp(std::span<const float> logits);

}  // namespace qkv::inline v0::infer
