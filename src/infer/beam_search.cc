#include "infer/beam_search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "infer/generate.h"

namespace qkv::inline v0::infer {
namespace {

constexpr double kBarred = -std::numeric_limits<double>::infinity();
constexpr const char* kWhere = "beam_search";

struct Beam {
  std::int64_t stream = -1;
  double sum = 0;  // of log-probabilities, after penalties
  Hypothesis text;
};

// Beam `parent` and one more token.
struct Extension {
  std::size_t parent = 0;
  std::int32_t id = 0;
  double sum = 0, logprob = 0;
  bool ends = false;
};

class Search {
 public:
  Search(const LanguageModel& model, CheckedPrompt prompt, const BeamOptions& options)
      : facts_(model.facts()),
        options_(options),
        prompt_(std::move(prompt)),
        ends_(facts_.end_ids),
        session_(model.start()) {
    ends_.insert(ends_.end(), options.end_ids.begin(), options.end_ids.end());
  }

  std::vector<Hypothesis> run() {
    Beam first;
    first.stream = session_->open();
    logits_ =
        prefill(*session_, first.stream, prompt_.ids, options_.prefill_chunk).reshape({1, -1});
    beams_.push_back(std::move(first));
    for (std::int64_t length = 1; length <= prompt_.most_new; ++length) {
      const bool last = length == prompt_.most_new;
      const std::vector<Extension> best = extensions(last);
      collect_finished(best, length);
      if (last || !can_improve(best, length)) break;
      advance(best);
    }
    finished_.resize(std::min(finished_.size(), static_cast<std::size_t>(options_.results)));
    return std::move(finished_);
  }

 private:
  bool is_end(std::int32_t id) const {
    return std::find(ends_.begin(), ends_.end(), id) != ends_.end();
  }

  // Of all beams together the best, so many that enough go on even if each beam may end in each of
  // the ways.
  std::vector<Extension> extensions(bool last) const {
    std::vector<Extension> all;
    for (std::size_t b = 0; b < beams_.size(); ++b) extend(b, all);
    const auto better = [](const Extension& x, const Extension& y) {
      if (x.sum != y.sum) return x.sum > y.sum;
      return x.parent != y.parent ? x.parent < y.parent : x.id < y.id;
    };
    const std::size_t n = std::min(kept(), all.size());
    std::partial_sort(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(n), all.end(), better);
    all.resize(n);
    for (Extension& e : all) e.ends = last || is_end(e.id);
    return all;
  }

  void extend(std::size_t b, std::vector<Extension>& all) const {
    const Beam& beam = beams_[b];
    const Tensor row = logits_.select(0, static_cast<std::int64_t>(b));
    const std::span<const float> logits(row.data<float>(),
                                        static_cast<std::size_t>(facts_.vocabulary));
    const double lse = log_sum_exp(logits);
    std::vector<float> logprobs(logits.size());
    for (std::size_t i = 0; i < logits.size(); ++i)
      logprobs[i] = static_cast<float>(static_cast<double>(logits[i]) - lse);
    const std::vector<float> own = logprobs;
    adjust_logits(logprobs, prompt_.ids, beam.text.ids, options_.sampling);
    if (static_cast<std::int64_t>(beam.text.ids.size()) < options_.min_new_tokens)
      for (const std::int32_t end : ends_)
        logprobs[static_cast<std::size_t>(end)] = -std::numeric_limits<float>::infinity();
    // Only the best of a beam can be among the best of all.
    std::vector<std::int32_t> ids(logprobs.size());
    std::iota(ids.begin(), ids.end(), 0);
    const auto at = [](const std::vector<float>& values, std::int32_t id) {
      return values[static_cast<std::size_t>(id)];
    };
    const auto better = [&](std::int32_t x, std::int32_t y) {
      return at(logprobs, x) > at(logprobs, y) || (at(logprobs, x) == at(logprobs, y) && x < y);
    };
    const std::size_t most = std::min(ids.size(), kept());
    if (most < ids.size())
      std::nth_element(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(most), ids.end(),
                       better);
    ids.resize(most);
    for (const std::int32_t id : ids) {
      const auto logprob = static_cast<double>(at(logprobs, id));
      if (logprob > kBarred)
        all.push_back({b, id, beam.sum + logprob, static_cast<double>(at(own, id)), false});
    }
  }

  Hypothesis hypothesis(const Extension& e) const {
    Hypothesis text = beams_[e.parent].text;
    text.ended = is_end(e.id);
    if (!text.ended) {
      text.ids.push_back(e.id);
      text.logprobs.push_back(e.logprob);
    }
    return text;
  }

  // Texts that end among the first `width` extensions join the finished ones; the best stay.
  void collect_finished(const std::vector<Extension>& best, std::int64_t length) {
    if (closed_ || (full() && options_.early_stopping == BeamOptions::EarlyStopping::kWhenFull))
      return;
    for (std::size_t i = 0; i < std::min(width(), best.size()); ++i) {
      if (!best[i].ends) continue;
      Hypothesis text = hypothesis(best[i]);
      text.score = normalised(best[i].sum, length);
      finished_.push_back(std::move(text));
    }
    std::stable_sort(finished_.begin(), finished_.end(),
                     [](const Hypothesis& a, const Hypothesis& b) { return a.score > b.score; });
    if (finished_.size() > width()) finished_.resize(width());
  }

  // Whether the search goes on: some extension does, and a running text may still beat a finished
  // one.
  bool can_improve(const std::vector<Extension>& best, std::int64_t length) {
    const auto running =
        std::find_if(best.begin(), best.end(), [](const Extension& e) { return !e.ends; });
    if (running == best.end()) return false;
    using Stopping = BeamOptions::EarlyStopping;
    if (full() && options_.early_stopping == Stopping::kWhenFull) return false;
    const bool at_longest =
        options_.early_stopping == Stopping::kNever && options_.length_penalty > 0;
    const double hoped = normalised(running->sum, at_longest ? prompt_.most_new : length);
    closed_ = closed_ || (full() && hoped <= finished_.back().score);
    return !closed_;
  }

  // The beams of the next step, each on a stream of its own.
  void advance(const std::vector<Extension>& best) {
    std::vector<Beam> next;
    std::vector<const Extension*> chosen;
    for (const Extension& e : best) {
      if (e.ends || chosen.size() == width()) continue;
      chosen.push_back(&e);
    }
    std::vector<std::size_t> heirs(beams_.size(), 0);
    for (const Extension* e : chosen) ++heirs[e->parent];
    for (const Extension* e : chosen) {
      Beam beam{-1, e->sum, hypothesis(*e)};
      // The last heir takes the stream over.
      beam.stream = --heirs[e->parent] == 0 ? std::exchange(beams_[e->parent].stream, -1)
                                            : session_->fork(beams_[e->parent].stream);
      next.push_back(std::move(beam));
    }
    for (const Beam& beam : beams_)
      if (beam.stream >= 0) session_->close(beam.stream);
    beams_ = std::move(next);
    std::vector<StreamTokens> parts;
    for (const Beam& beam : beams_)
      parts.push_back({beam.stream, std::span(beam.text.ids).last(1)});
    logits_ = session_->append(parts, LogitsOf::kLastTokens);
  }

  double normalised(double sum, std::int64_t length) const {
    return sum / std::pow(static_cast<double>(length), options_.length_penalty);
  }
  std::size_t kept() const { return std::max<std::size_t>(2, 1 + ends_.size()) * width(); }
  std::size_t width() const { return static_cast<std::size_t>(options_.beams); }
  bool full() const { return finished_.size() == width(); }

  const LanguageModel::Facts& facts_;
  const BeamOptions& options_;
  CheckedPrompt prompt_;
  std::vector<std::int32_t> ends_;
  std::unique_ptr<DecodingSession> session_;
  std::vector<Beam> beams_;
  Tensor logits_;  // [beams, W]
  std::vector<Hypothesis> finished_;
  bool closed_ = false;  // no further text may join
};

}  // namespace

std::vector<Hypothesis> beam_search(const LanguageModel& model,
                                    std::span<const std::int32_t> prompt,
                                    const BeamOptions& options) {
  options.sampling.check(model.facts().vocabulary);
  require<ArgumentError>(options.beams >= 1 && options.beams <= model.facts().vocabulary, kWhere,
                         "expected beams in [1, {}], got {}", model.facts().vocabulary,
                         options.beams);
  require<ArgumentError>(options.results >= 1 && options.results <= options.beams, kWhere,
                         "expected results in [1, {}], got {}", options.beams, options.results);
  require<ArgumentError>(options.max_new_tokens >= 0 && options.min_new_tokens >= 0 &&
                             options.min_new_tokens <= options.max_new_tokens,
                         kWhere, "expected 0 <= min_new_tokens <= max_new_tokens, got {} and {}",
                         options.min_new_tokens, options.max_new_tokens);
  require<ArgumentError>(options.prefill_chunk > 0, kWhere, "expected prefill_chunk > 0, got {}",
                         options.prefill_chunk);
  require<ArgumentError>(std::isfinite(options.length_penalty), kWhere,
                         "expected length_penalty to be finite, got {}", options.length_penalty);
  CheckedPrompt checked = check_prompt(model.facts(), prompt, options.max_new_tokens);
  if (checked.most_new == 0) return {Hypothesis{}};
  return Search(model, std::move(checked), options).run();
}

}  // namespace qkv::inline v0::infer
