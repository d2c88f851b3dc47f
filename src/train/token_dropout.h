// Token dropout: training sees each text with a few of its tokens hidden.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "qkv/tokenizer.h"

#include "text/dataset.h"

namespace qkv::inline v0::train {

// In every step each token that is not special becomes [MASK] with probability p, so that no label
// hangs on one word (word dropout: Iyyer et al. 2015, Gal and Ghahramani 2016). Which ones is a
// pure function of seed, step, sample and position: the same after a resume and for any batch.
class TokenDropout {
 public:
  TokenDropout() = default;  // hides nothing
  // ConfigError if p > 0 and the tokenizer has no mask token.
  TokenDropout(double p, const Tokenizer& tokenizer, std::uint64_t seed);

  bool is_on() const { return p_ > 0; }
  double p() const { return p_; }
  std::int32_t mask() const { return mask_; }
  const std::vector<std::int32_t>& specials() const { return specials_; }  // never hidden

  // The members as step `step` sees them. Copies live in `kept`, which must outlive the result.
  std::vector<const Sample*> hide(std::vector<const Sample*> members, std::int64_t step,
                                  std::deque<Sample>& kept) const;

 private:
  double p_ = 0;
  std::int32_t mask_ = 0;
  std::vector<std::int32_t> specials_;
  std::uint64_t key_ = 0;
};

}  // namespace qkv::inline v0::train
