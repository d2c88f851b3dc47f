#include "text/trainer.h"

#include <algorithm>
#include <queue>
#include <unordered_map>

#include "base/random.h"

namespace qkv::inline v0::text {
namespace {

using PairKey = std::uint64_t;
constexpr PairKey pair_key(std::int32_t left, std::int32_t right) {
  return (std::uint64_t{static_cast<std::uint32_t>(left)} << 32) |
         static_cast<std::uint32_t>(right);
}
constexpr std::int32_t left_of(PairKey key) { return static_cast<std::int32_t>(key >> 32); }
constexpr std::int32_t right_of(PairKey key) {
  return static_cast<std::int32_t>(key & 0xFFFFFFFFu);
}

struct KeyHash {
  std::size_t operator()(PairKey key) const { return static_cast<std::size_t>(hash_pair(key, 0)); }
};

struct PairInfo {
  std::int64_t count = 0;
  std::vector<std::int32_t> words;  // that held the pair once; some may not any more
};

// Counts of all pairs, and a queue of candidates. An entry of the queue may be out of date: it is
// checked when taken.
class PairCounts {
 public:
  explicit PairCounts(const std::vector<std::string>& names) : queue_(Less{&names}) {}

  void add(PairKey key, std::int64_t change, std::int32_t word) {
    PairInfo& info = pairs_[key];
    info.count += change;
    if (change > 0 && (info.words.empty() || info.words.back() != word)) info.words.push_back(word);
    if (change > 0) grown_.push_back(key);
  }

  // Puts the pairs that became more frequent into the queue.
  void publish() {
    std::sort(grown_.begin(), grown_.end());
    grown_.erase(std::unique(grown_.begin(), grown_.end()), grown_.end());
    for (const PairKey key : grown_) {
      if (const std::int64_t count = pairs_[key].count; count > 0) queue_.push({count, key});
    }
    grown_.clear();
  }

  // Takes the most frequent pair that occurs at least `least` times; false if there is none.
  bool take(std::int64_t least, PairKey& key, PairInfo& info) {
    while (!queue_.empty()) {
      const Candidate top = queue_.top();
      queue_.pop();
      const auto found = pairs_.find(top.key);
      if (found == pairs_.end()) continue;
      if (found->second.count != top.count) {
        // Fewer than when it was put in: once more with the present count. More: a newer entry is
        // in the queue.
        if (found->second.count > 0 && found->second.count < top.count)
          queue_.push({found->second.count, top.key});
        continue;
      }
      if (top.count < least) return false;
      key = top.key;
      info = std::move(found->second);
      pairs_.erase(found);
      return true;
    }
    return false;
  }

 private:
  struct Candidate {
    std::int64_t count;
    PairKey key;
  };
  struct Less {
    const std::vector<std::string>* names;
    const std::string& name(std::int32_t symbol) const {
      return (*names)[static_cast<std::size_t>(symbol)];
    }
    bool operator()(const Candidate& a, const Candidate& b) const {
      if (a.count != b.count) return a.count < b.count;
      if (const int order = name(left_of(a.key)).compare(name(left_of(b.key))); order != 0)
        return order < 0;
      return name(right_of(a.key)) < name(right_of(b.key));
    }
  };
  std::unordered_map<PairKey, PairInfo, KeyHash> pairs_;
  std::priority_queue<Candidate, std::vector<Candidate>, Less> queue_;
  std::vector<PairKey> grown_;
};

// Replaces each `pair` in the word by `made`, left to right, and reports every change of a pair's
// count.
template <class Report>
void merge_in_word(CountedWord& word, PairKey pair, std::int32_t made, Report report) {
  std::vector<std::int32_t>& s = word.symbols;
  std::size_t out = 0;
  for (std::size_t i = 0; i < s.size(); ++i) {
    if (i + 1 >= s.size() || pair_key(s[i], s[i + 1]) != pair) {
      s[out++] = s[i];
      continue;
    }
    if (out > 0) {
      report(pair_key(s[out - 1], s[i]), -word.count);
      report(pair_key(s[out - 1], made), word.count);
    }
    if (i + 2 < s.size()) {
      report(pair_key(s[i + 1], s[i + 2]), -word.count);
      report(pair_key(made, s[i + 2]), word.count);
    }
    s[out++] = made;
    ++i;
  }
  s.resize(out);
}

}  // namespace

PairTrainer::PairTrainer(std::vector<std::string> names, std::vector<CountedWord> words,
                         std::string prefix)
    : names_(std::move(names)), words_(std::move(words)), prefix_(std::move(prefix)) {}

void PairTrainer::run(std::size_t max_names, std::int64_t min_frequency) {
  std::unordered_map<std::string, std::int32_t> known;
  for (std::size_t i = 0; i < names_.size(); ++i)
    known.emplace(names_[i], static_cast<std::int32_t>(i));
  PairCounts counts(names_);
  for (std::size_t w = 0; w < words_.size(); ++w) {
    const std::vector<std::int32_t>& s = words_[w].symbols;
    for (std::size_t i = 0; i + 1 < s.size(); ++i) {
      counts.add(pair_key(s[i], s[i + 1]), words_[w].count, static_cast<std::int32_t>(w));
    }
  }
  counts.publish();
  PairKey pair = 0;
  PairInfo info;
  while (names_.size() < max_names && counts.take(min_frequency, pair, info)) {
    std::string_view right = names_[static_cast<std::size_t>(right_of(pair))];
    if (!prefix_.empty() && right.starts_with(prefix_)) right.remove_prefix(prefix_.size());
    const std::string name = names_[static_cast<std::size_t>(left_of(pair))] + std::string(right);
    // Two different pairs may spell the same piece: it keeps its first number.
    const auto [entry, added] = known.emplace(name, static_cast<std::int32_t>(names_.size()));
    if (added) names_.push_back(name);
    const std::int32_t made = entry->second;
    merges_.push_back({left_of(pair), right_of(pair), made});
    std::sort(info.words.begin(), info.words.end());
    info.words.erase(std::unique(info.words.begin(), info.words.end()), info.words.end());
    for (const std::int32_t w : info.words) {
      merge_in_word(words_[static_cast<std::size_t>(w)], pair, made,
                    [&](PairKey key, std::int64_t change) {
                      if (key != pair) counts.add(key, change, w);
                    });
    }
    counts.publish();
  }
}

}  // namespace qkv::inline v0::text
