// Beam search.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "infer/language_model.h"
#include "infer/sampler.h"

namespace qkv::inline v0::infer {

struct BeamOptions {
  std::int64_t beams = 4;
  std::int64_t results = 1;  // at most `beams`
  std::int64_t max_new_tokens = 128, min_new_tokens = 0;
  double length_penalty = 1;  // a finished text's score is its log-probability / length^penalty
  // When a search ends before max_new_tokens: kWhenFull once `beams` texts have ended; kHeuristic
  // once no running one beats the worst of them at its present length; kNever once none can even at
  // the length that suits it best.
  enum class EarlyStopping { kHeuristic, kWhenFull, kNever };
  EarlyStopping early_stopping = EarlyStopping::kHeuristic;
  std::vector<std::int32_t> end_ids;  // besides the model's
  std::int64_t prefill_chunk = 512;
  // Bias, bans and penalties act on log-probabilities; temperature and filters are not used.
  SamplingOptions sampling;
};

struct Hypothesis {
  std::vector<std::int32_t> ids;  // without the end id
  bool ended = false;             // by an end id, not by length
  double score = 0;               // as above; the length counts the end id
  std::vector<double> logprobs;   // of each id
};

// The best hypotheses, best first; equal to those of transformers' generate(num_beams = ...). The
// context rule and errors are generate()'s. Thread-safe.
std::vector<Hypothesis> beam_search(const LanguageModel& model,
                                    std::span<const std::int32_t> prompt,
                                    const BeamOptions& options);

}  // namespace qkv::inline v0::infer
