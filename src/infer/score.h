// How probable a text is.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "infer/language_model.h"

namespace qkv::inline v0::infer {

struct ScoreOptions {
  // A text longer than `window` tokens is read in windows that each begin `stride` further; a token
  // counts once, in the first window that holds it. 0: the model's context, and a longer text is an
  // error.
  std::int64_t window = 0, stride = 0;
  std::int64_t chunk = 256;  // tokens whose logits are held at once
};

struct TokenScore {
  double logprob = 0;
  bool is_greedy = false;  // no other token is more probable
};

struct Score {
  std::vector<TokenScore> tokens;  // of ids[1], ids[2], ..
  double sum() const;
  double perplexity() const;  // exp(-sum / count)
  bool is_greedy() const;     // every token is
};

// log p(ids[i] | ids[0 .. i-1]) for i >= 1, over the model's vocabulary. DataError for fewer than
// two ids (there is nothing to score) and for a text longer than the context without a window.
// Thread-safe.
Score score(const LanguageModel& model, std::span<const std::int32_t> ids,
            const ScoreOptions& options = {});

// Of the tokens of `continuation` after `context`. An empty context is the model's first token.
Score score_continuation(const LanguageModel& model, std::span<const std::int32_t> context,
                         std::span<const std::int32_t> continuation);

}  // namespace qkv::inline v0::infer
