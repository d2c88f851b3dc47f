// Learning the pieces of a vocabulary from counted words.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace qkv::inline v0::text {

struct CountedWord {
  std::vector<std::int32_t> symbols;  // indices into PairTrainer's names
  std::int64_t count = 0;
};

struct LearnedMerge {
  std::int32_t left = 0, right = 0, made = 0;  // indices into names
};

// Joins the most frequent pair of neighbouring symbols, again and again (Gage 1994, Sennrich et al.
// 2016). Among equally frequent pairs the one with the greater names, compared byte by byte, left
// one first; so the result depends on the counts alone. Pair counts are kept up to date word by
// word: a merge costs as much as the words that hold the pair.
class PairTrainer {
 public:
  // `prefix`: what names of symbols inside a word begin with ("##"); it is dropped from the right
  // one when two are joined.
  PairTrainer(std::vector<std::string> names, std::vector<CountedWord> words, std::string prefix);

  // Merges until there are `max_names` names or no pair occurs `min_frequency` times.
  void run(std::size_t max_names, std::int64_t min_frequency);

  const std::vector<std::string>& names() const { return names_; }
  const std::vector<LearnedMerge>& merges() const { return merges_; }

 private:
  std::vector<std::string> names_;
  std::vector<CountedWord> words_;
  std::string prefix_;
  std::vector<LearnedMerge> merges_;
};

}  // namespace qkv::inline v0::text
