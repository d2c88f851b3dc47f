#include "train/token_dropout.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/random.h"

namespace qkv::inline v0::train {

TokenDropout::TokenDropout(double p, const Tokenizer& tokenizer, std::uint64_t seed)
    : p_(p), key_(hash_pair(seed, hash_text("token_dropout"))) {
  if (p == 0) return;
  const std::optional<std::int32_t> mask = tokenizer.special_id("mask");
  require<ConfigError>(mask.has_value(), "config",
                       "train.token_dropout: expected a tokenizer with a mask token, got one "
                       "without; leave token_dropout at 0");
  mask_ = *mask;
  for (const char* role : {"pad", "cls", "sep", "mask"}) {
    if (const auto id = tokenizer.special_id(role)) specials_.push_back(*id);
  }
}

std::vector<const Sample*> TokenDropout::hide(std::vector<const Sample*> members, std::int64_t step,
                                              std::deque<Sample>& kept) const {
  if (!is_on()) return members;
  const auto limit = static_cast<std::uint64_t>(std::llround(p_ * 4294967296.0));
  for (const Sample*& member : members) {
    Sample& sample = kept.emplace_back(*member);
    PhiloxBlock numbers{};
    for (std::size_t i = 0; i < sample.ids.size(); ++i) {
      if (i % 4 == 0) {
        numbers = philox(
            key_,
            {static_cast<std::uint32_t>(i / 4), static_cast<std::uint32_t>(sample.index),
             static_cast<std::uint32_t>(sample.index >> 32), static_cast<std::uint32_t>(step)});
      }
      const bool special =
          std::find(specials_.begin(), specials_.end(), sample.ids[i]) != specials_.end();
      if (!special && numbers[i % 4] < limit) sample.ids[i] = mask_;
    }
    member = &sample;
  }
  return members;
}

}  // namespace qkv::inline v0::train
