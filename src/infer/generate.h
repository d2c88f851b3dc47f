// Continuations of prompts: greedy or drawn, many at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "infer/language_model.h"
#include "infer/sampler.h"
#include "infer/text_stream.h"

namespace qkv::inline v0::infer {

enum class FinishReason { kStop, kLength, kCancelled };
const char* finish_reason_name(FinishReason reason);  // "stop", "length", "cancelled"

struct GenerateOptions {
  std::int64_t max_new_tokens = 128;
  std::int64_t min_new_tokens = 0;  // end ids are barred for so many tokens
  SamplingOptions sampling;
  std::uint64_t seed = 0;  // draw i of prompt b is a function of (seed, b, i) alone
  std::vector<std::string> stop;
  std::vector<std::int32_t> end_ids;  // besides the model's
  bool ignore_end = false;            // no end ids at all
  bool logprobs = false;
  std::int64_t prefill_chunk = 512;  // tokens of a prompt in one pass
  std::int64_t max_streams = 8;      // continuations that run side by side
};

struct Generated {
  std::vector<std::int32_t> ids;  // without the end id; those of a stop string are among them
  // Of each id, if asked: of the model's own distribution over its vocabulary, before penalties,
  // temperature and filters.
  std::vector<double> logprobs;
  std::string text;  // up to the stop string; empty without GenerateHooks::bytes
  FinishReason finish = FinishReason::kLength;
};

struct GenerateHooks {
  TokenBytes bytes;  // needed for text and stop strings
  // The text of prompt `index` goes on; whole characters. false cancels that continuation.
  std::function<bool(std::size_t index, std::string_view text)> on_text;
};

// One result per prompt, in their order. A continuation that has ended costs nothing further; the
// next waiting prompt takes its place. A result's ids depend neither on the other prompts nor on
// max_streams.
//
// prompt + new tokens <= the model's context: fewer than max_new_tokens are made where the context
// ends before (finish "length"). Before any work: DataError for a prompt that leaves no place for a
// token that is wanted, and for an empty one if the model has no token to begin with (else it
// begins with that); ArgumentError for ids outside the vocabulary and options out of range.
// NumericError for NaN logits. Thread-safe.
std::vector<Generated> generate(const LanguageModel& model,
                                std::span<const std::vector<std::int32_t>> prompts,
                                const GenerateOptions& options, const GenerateHooks& hooks = {});

// The ids a prompt begins with (an empty one: the model's first token) once they are known to fit,
// and how many tokens may follow: what generate() and beam_search() check, as they say.
struct CheckedPrompt {
  std::vector<std::int32_t> ids;
  std::int64_t most_new = 0;
};
CheckedPrompt check_prompt(const LanguageModel::Facts& facts, std::span<const std::int32_t> prompt,
                           std::int64_t max_new_tokens);

// Appends a prompt in chunks; logits of its last token, [W].
Tensor prefill(DecodingSession& session, std::int64_t stream, std::span<const std::int32_t> prompt,
               std::int64_t chunk);

}  // namespace qkv::inline v0::infer
