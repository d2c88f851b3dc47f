#include "infer/score.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "base/check.h"
#include "base/thread_pool.h"
#include "infer/sampler.h"

namespace qkv::inline v0::infer {
namespace {

constexpr const char* kWhere = "score";

// Scores ids[begin + 1 ..] of the window, but only those from `first` on.
void score_window(const LanguageModel& model, std::span<const std::int32_t> window,
                  std::size_t first, std::int64_t chunk, std::vector<TokenScore>& scores) {
  const auto vocabulary = static_cast<std::size_t>(model.facts().vocabulary);
  const std::unique_ptr<DecodingSession> session = model.start();
  const std::int64_t stream = session->open();
  const auto last = window.size() - 1;  // the last token's logits are of no use
  for (std::size_t begin = 0; begin < last;) {
    const std::size_t count = std::min(static_cast<std::size_t>(chunk), last - begin);
    const StreamTokens part{stream, window.subspan(begin, count)};
    const bool needed = begin + count >= first;
    const Tensor logits =
        session->append({&part, 1}, needed ? LogitsOf::kAllTokens : LogitsOf::kLastTokens);
    const std::size_t from = std::max(begin, first - 1), to = begin + count;
    if (needed && from < to) {
      const std::size_t at = scores.size();
      scores.resize(at + to - from);
      parallel_for(static_cast<std::int64_t>(to - from), [&](std::int64_t i) {
        const std::size_t row = from + static_cast<std::size_t>(i);
        const std::span<const float> all(
            logits.data<float>() + static_cast<std::int64_t>(row - begin) * logits.stride(0),
            vocabulary);
        const float own = all[static_cast<std::size_t>(window[row + 1])];
        scores[at + static_cast<std::size_t>(i)] = {
            static_cast<double>(own) - log_sum_exp(all),
            own >= *std::max_element(all.begin(), all.end())};
      });
    }
    begin += count;
  }
}

void check_ids(const LanguageModel& model, std::span<const std::int32_t> ids) {
  for (const std::int32_t id : ids)
    require<ArgumentError>(id >= 0 && id < model.facts().vocabulary, kWhere,
                           "expected token ids in [0, {}), got {}", model.facts().vocabulary, id);
}

}  // namespace

double Score::sum() const {
  double total = 0;
  for (const TokenScore& t : tokens) total += t.logprob;
  return total;
}

double Score::perplexity() const { return std::exp(-sum() / static_cast<double>(tokens.size())); }

bool Score::is_greedy() const {
  return std::all_of(tokens.begin(), tokens.end(), [](const TokenScore& t) { return t.is_greedy; });
}

Score score(const LanguageModel& model, std::span<const std::int32_t> ids,
            const ScoreOptions& options) {
  require<DataError>(ids.size() >= 2, kWhere,
                     "expected at least two tokens, got {}: the first has nothing before it, so "
                     "there is nothing to score",
                     ids.size());
  check_ids(model, ids);
  const std::optional<std::int64_t>& context = model.facts().context;
  const auto length = static_cast<std::int64_t>(ids.size());
  const std::int64_t window = options.window > 0 ? options.window : context.value_or(length);
  require<ArgumentError>(
      options.window == 0 ||
          (options.window >= 2 && options.stride >= 1 && options.stride < options.window),
      kWhere, "expected a window >= 2 and a stride in [1, window), got {} and {}", options.window,
      options.stride);
  require<ArgumentError>(options.chunk > 0, kWhere, "expected chunk > 0, got {}", options.chunk);
  require<ArgumentError>(!context || window <= *context, kWhere,
                         "expected a window of at most {} tokens (the model's context), got {}",
                         context.value_or(0), window);
  require<DataError>(length <= window || options.window > 0, kWhere,
                     "expected a text of at most {} tokens (the model's context), got {}; give a "
                     "window and a stride",
                     window, length);
  Score result;
  std::int64_t scored = 1;  // ids up to here have their score, or none to get
  for (std::int64_t begin = 0; scored < length; begin += options.stride) {
    const std::int64_t end = std::min(length, begin + window);
    score_window(
        model, ids.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin)),
        static_cast<std::size_t>(scored - begin), options.chunk, result.tokens);
    scored = end;
  }
  return result;
}

Score score_continuation(const LanguageModel& model, std::span<const std::int32_t> context,
                         std::span<const std::int32_t> continuation) {
  std::vector<std::int32_t> ids(context.begin(), context.end());
  if (ids.empty()) {
    const LanguageModel::Facts& facts = model.facts();
    require<DataError>(facts.bos.has_value() || !facts.end_ids.empty(), kWhere,
                       "expected a context, got none; the model has no token that begins a text");
    ids.push_back(facts.bos.has_value() ? facts.bos.value_or(0) : facts.end_ids.front());
  }
  require<DataError>(!continuation.empty(), kWhere,
                     "expected a continuation of at least one token, got none");
  const std::size_t first = ids.size();
  ids.insert(ids.end(), continuation.begin(), continuation.end());
  Score result = score(model, ids);
  result.tokens.erase(result.tokens.begin(),
                      result.tokens.begin() + static_cast<std::ptrdiff_t>(first - 1));
  return result;
}

}  // namespace qkv::inline v0::infer
