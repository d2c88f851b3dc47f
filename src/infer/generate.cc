#include "infer/generate.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/random.h"

namespace qkv::inline v0::infer {
namespace {

constexpr const char* kWhere = "generate";

struct Ends {
  std::vector<std::int32_t> ids;
  bool contains(std::int32_t id) const {
    return std::find(ids.begin(), ids.end(), id) != ids.end();
  }
};

Ends ends_of(const LanguageModel::Facts& facts, const GenerateOptions& options) {
  if (options.ignore_end) return {};
  Ends ends{facts.end_ids};
  ends.ids.insert(ends.ids.end(), options.end_ids.begin(), options.end_ids.end());
  return ends;
}

void check_options(const LanguageModel::Facts& facts, const GenerateOptions& o,
                   const GenerateHooks& hooks) {
  o.sampling.check(facts.vocabulary);
  require<ArgumentError>(o.max_new_tokens >= 0, kWhere, "expected max_new_tokens >= 0, got {}",
                         o.max_new_tokens);
  require<ArgumentError>(o.min_new_tokens >= 0 && o.min_new_tokens <= o.max_new_tokens, kWhere,
                         "expected min_new_tokens in [0, {}], got {}", o.max_new_tokens,
                         o.min_new_tokens);
  require<ArgumentError>(o.prefill_chunk > 0 && o.max_streams > 0, kWhere,
                         "expected prefill_chunk and max_streams > 0, got {} and {}",
                         o.prefill_chunk, o.max_streams);
  require<ArgumentError>(o.stop.empty() || hooks.bytes, kWhere,
                         "stop strings need a tokenizer, got none");
  for (const std::int32_t id : o.end_ids)
    require<ArgumentError>(id >= 0 && id < facts.vocabulary, kWhere,
                           "expected end ids in [0, {}), got {}", facts.vocabulary, id);
}

// A continuation at work.
struct Row {
  std::size_t index;
  CheckedPrompt prompt;
  Random random;
  TextStream text;
  std::int64_t stream = -1;
};

class Run {
 public:
  Run(const LanguageModel& model, const GenerateOptions& options, const GenerateHooks& hooks,
      std::vector<Generated>& results)
      : facts_(model.facts()),
        options_(options),
        hooks_(hooks),
        ends_(ends_of(facts_, options)),
        session_(model.start()),
        results_(results) {}

  void start(Row row) {
    Generated& result = results_[row.index];
    if (row.prompt.most_new == 0) return;  // "length", the default
    row.stream = session_->open();
    const Tensor logits = prefill(*session_, row.stream, row.prompt.ids, options_.prefill_chunk);
    if (take(row, logits, result)) {
      rows_.push_back(std::move(row));
    } else {
      session_->close(row.stream);
    }
  }

  void step() {
    std::vector<StreamTokens> parts;
    for (const Row& row : rows_)
      parts.push_back({row.stream, std::span(results_[row.index].ids).last(1)});
    const Tensor logits = session_->append(parts, LogitsOf::kLastTokens);
    std::vector<Row> going;
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      if (take(rows_[i], logits.select(0, static_cast<std::int64_t>(i)),
               results_[rows_[i].index])) {
        going.push_back(std::move(rows_[i]));
      } else {
        session_->close(rows_[i].stream);
      }
    }
    rows_ = std::move(going);
  }

  std::int64_t running() const { return static_cast<std::int64_t>(rows_.size()); }

 private:
  // Picks the next token of a row; false: it has ended.
  bool take(Row& row, const Tensor& logits, Generated& result) {
    const std::span<float> all(logits.data<float>(), static_cast<std::size_t>(facts_.vocabulary));
    const std::int32_t id = pick(row, all, result);
    if (ends_.contains(id)) {
      if (options_.logprobs) result.logprobs.pop_back();
      return finish(row, result, FinishReason::kStop);
    }
    result.ids.push_back(id);
    if (hooks_.bytes && !emit(row, result, row.text.push(id)))
      return finish(row, result, FinishReason::kCancelled);
    if (row.text.stopped()) return finish(row, result, FinishReason::kStop);
    if (static_cast<std::int64_t>(result.ids.size()) == row.prompt.most_new)
      return finish(row, result, FinishReason::kLength);
    return true;
  }

  std::int32_t pick(Row& row, std::span<float> logits, Generated& result) {
    const SamplingOptions& sampling = options_.sampling;
    const bool bars_ends = static_cast<std::int64_t>(result.ids.size()) < options_.min_new_tokens;
    std::vector<float> adjusted;
    std::span<float> used = logits;
    if (sampling.adjusts() || bars_ends) {
      adjusted.assign(logits.begin(), logits.end());
      used = adjusted;
      adjust_logits(used, row.prompt.ids, result.ids, sampling);
      if (bars_ends)
        for (const std::int32_t end : ends_.ids)
          used[static_cast<std::size_t>(end)] = -std::numeric_limits<float>::infinity();
    }
    const double uniform = sampling.temperature > 0 ? row.random.uniform() : 0;
    const std::int32_t id = sample(used, sampling, uniform);
    if (options_.logprobs)
      result.logprobs.push_back(static_cast<double>(logits[static_cast<std::size_t>(id)]) -
                                log_sum_exp(logits));
    return id;
  }

  bool emit(const Row& row, Generated& result, const std::string& text) const {
    if (text.empty()) return true;
    result.text += text;
    return !hooks_.on_text || hooks_.on_text(row.index, text);
  }

  // Always false.
  bool finish(Row& row, Generated& result, FinishReason reason) const {
    result.finish = reason;
    if (hooks_.bytes && reason != FinishReason::kCancelled) emit(row, result, row.text.finish());
    return false;
  }

  const LanguageModel::Facts& facts_;
  const GenerateOptions& options_;
  const GenerateHooks& hooks_;
  Ends ends_;
  std::unique_ptr<DecodingSession> session_;
  std::vector<Generated>& results_;
  std::vector<Row> rows_;
};

}  // namespace

const char* finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      break;
  }
  return "cancelled";
}

CheckedPrompt check_prompt(const LanguageModel::Facts& facts, std::span<const std::int32_t> prompt,
                           std::int64_t max_new_tokens) {
  CheckedPrompt checked{{prompt.begin(), prompt.end()}, max_new_tokens};
  if (checked.ids.empty()) {
    require<DataError>(facts.bos.has_value(), kWhere,
                       "expected a prompt of at least one token, got none; the model has no token "
                       "that begins a text");
    checked.ids.push_back(facts.bos.value_or(0));
  }
  for (const std::int32_t id : checked.ids)
    require<ArgumentError>(id >= 0 && id < facts.vocabulary, kWhere,
                           "expected token ids in [0, {}), got {}", facts.vocabulary, id);
  if (!facts.context) return checked;
  const auto length = static_cast<std::int64_t>(checked.ids.size());
  const std::int64_t left = *facts.context - length;
  require<DataError>(left >= (max_new_tokens > 0 ? 1 : 0), kWhere,
                     "expected a prompt and new tokens of at most {} together (the model's "
                     "context), got a prompt of {} and {} wanted; shorten the prompt",
                     *facts.context, length, max_new_tokens);
  checked.most_new = std::min(max_new_tokens, left);
  return checked;
}

Tensor prefill(DecodingSession& session, std::int64_t stream, std::span<const std::int32_t> prompt,
               std::int64_t chunk) {
  Tensor logits;
  while (!prompt.empty()) {
    const auto ids = prompt.first(std::min(prompt.size(), static_cast<std::size_t>(chunk)));
    const StreamTokens part{stream, ids};
    logits = session.append({&part, 1}, LogitsOf::kLastTokens);
    prompt = prompt.subspan(ids.size());
  }
  return logits.select(0, 0);
}

std::vector<Generated> generate(const LanguageModel& model,
                                std::span<const std::vector<std::int32_t>> prompts,
                                const GenerateOptions& options, const GenerateHooks& hooks) {
  check_options(model.facts(), options, hooks);
  const StopFinder checked_stops(options.stop);
  std::vector<CheckedPrompt> waiting;
  for (const std::vector<std::int32_t>& prompt : prompts)
    waiting.push_back(check_prompt(model.facts(), prompt, options.max_new_tokens));
  std::vector<Generated> results(prompts.size());
  Run run(model, options, hooks, results);
  std::size_t next = 0;
  while (next < waiting.size() || run.running() > 0) {
    while (next < waiting.size() && run.running() < options.max_streams) {
      run.start({next, std::move(waiting[next]), Random(options.seed, next),
                 TextStream(hooks.bytes, options.stop)});
      ++next;
    }
    if (run.running() > 0) run.step();
  }
  return results;
}

}  // namespace qkv::inline v0::infer
