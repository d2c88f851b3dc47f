// qkv generate: how a text goes on.
#include <CLI/CLI.hpp>
#include <charconv>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/check.h"
#include "base/log.h"
#include "infer/beam_search.h"
#include "infer/generate.h"
#include "infer/package.h"
#include "terminal.h"
#include "verbs.h"

namespace qkv::inline v0 {
namespace {

struct GenerateVerbOptions {
  std::string model, tokenizer;
  std::vector<std::string> prompts, more, logit_bias;
  infer::GenerateOptions generate;
  std::int64_t beams = 1, batch = 8;
  double length_penalty = 1;
  std::optional<double> temperature;
  std::string early_stopping = "false";
  bool logprobs = false, echo = false, no_special = false, plain = false;
};

// "ID=VALUE".
std::pair<std::int32_t, double> parse_bias(const std::string& text) {
  const std::size_t at = text.find('=');
  std::int32_t id = 0;
  double bias = 0;
  const char* end = text.data() + text.size();
  const bool good = at != std::string::npos &&
                    std::from_chars(text.data(), text.data() + at, id).ptr == text.data() + at &&
                    std::from_chars(text.data() + at + 1, end, bias).ptr == end && at > 0 &&
                    at + 1 < text.size();
  require<ArgumentError>(good, "generate", "expected --logit-bias ID=VALUE, got '{}'", text);
  return {id, bias};
}

// Greedy, unless something is asked for that only drawing has.
void set_sampling(GenerateVerbOptions& o) {
  infer::SamplingOptions& s = o.generate.sampling;
  const bool filters = s.top_k > 0 || s.top_p < 1 || s.min_p > 0;
  s.temperature = o.temperature.value_or(filters ? 1 : 0);
  for (const std::string& text : o.logit_bias) s.logit_bias.push_back(parse_bias(text));
  if (o.beams == 1) return;
  require<ArgumentError>(s.temperature == 0 && !filters, "generate",
                         "expected no --temperature, --top-k, --top-p and --min-p with "
                         "--num-beams: beam search does not draw");
  require<ArgumentError>(o.generate.stop.empty(), "generate",
                         "expected no --stop with --num-beams");
}

infer::BeamOptions beam_options(const GenerateVerbOptions& o) {
  infer::BeamOptions beams;
  beams.beams = o.beams;
  beams.max_new_tokens = o.generate.max_new_tokens;
  beams.min_new_tokens = o.generate.min_new_tokens;
  beams.length_penalty = o.length_penalty;
  beams.sampling = o.generate.sampling;
  using Stopping = infer::BeamOptions::EarlyStopping;
  beams.early_stopping = o.early_stopping == "true"    ? Stopping::kWhenFull
                         : o.early_stopping == "never" ? Stopping::kNever
                                                       : Stopping::kHeuristic;
  return beams;
}

struct Answer {
  infer::Generated text;
  std::optional<double> score;  // of beam search
};

Json answer_json(const infer::LanguagePackage& package, const std::string& prompt,
                 const Answer& answer, bool logprobs) {
  Json tokens = Json::array(), all = Json::array();
  for (std::size_t i = 0; i < answer.text.ids.size(); ++i) {
    Json token = Json::object();
    token["id"] = std::int64_t{answer.text.ids[i]};
    token["piece"] = infer::piece_of(package.tokenizer, answer.text.ids[i]);
    token["logprob"] = answer.text.logprobs[i];
    tokens.push_back(std::move(token));
    all.push_back(answer.text.logprobs[i]);
  }
  Json out = Json::object();
  out["prompt"] = prompt;
  out["text"] = answer.text.text;
  out["tokens"] = std::move(tokens);
  out["finish_reason"] = infer::finish_reason_name(answer.text.finish);
  if (answer.score) out["score"] = *answer.score;
  if (logprobs) out["logprobs"] = std::move(all);
  return out;
}

Answer search(const infer::LanguagePackage& package, const std::vector<std::int32_t>& prompt,
              const GenerateVerbOptions& o) {
  infer::Hypothesis best = infer::beam_search(*package.model, prompt, beam_options(o)).front();
  Answer answer;
  infer::TextStream stream(infer::token_bytes(package.tokenizer), {});
  for (const std::int32_t id : best.ids) answer.text.text += stream.push(id);
  answer.text.text += stream.finish();
  answer.text.ids = std::move(best.ids);
  answer.text.logprobs = std::move(best.logprobs);
  answer.text.finish = best.ended ? infer::FinishReason::kStop : infer::FinishReason::kLength;
  answer.score = best.score;
  return answer;
}

// A text on one line, where several are printed.
std::string one_line(std::string text) {
  for (std::size_t at = text.find('\n'); at != std::string::npos; at = text.find('\n', at + 2))
    text.replace(at, 1, "\\n");
  return text;
}

class GenerateRun {
 public:
  GenerateRun(const GenerateVerbOptions& options, const Globals& globals)
      : o_(options),
        globals_(globals),
        package_(infer::load_language_package(o_.model, o_.tokenizer)) {}

  void run() {
    std::vector<std::string> arguments = o_.prompts;
    ItemReader items(std::move(arguments), "generate");
    const bool streams = !globals_.json && o_.beams == 1 && o_.prompts.size() == 1 &&
                         !items.from_stdin() && o_.prompts.front() != "-";
    for (std::vector<std::string> prompts = next(items); !prompts.empty(); prompts = next(items)) {
      std::vector<std::vector<std::int32_t>> ids;
      for (const std::string& prompt : prompts) ids.push_back(encode(prompt));
      const std::vector<Answer> answers = streams ? stream(prompts.front(), ids) : answers_of(ids);
      if (streams) continue;
      for (std::size_t i = 0; i < prompts.size(); ++i) print(prompts[i], answers[i]);
    }
  }

 private:
  std::vector<std::string> next(ItemReader& items) const {
    std::vector<std::string> prompts;
    std::string prompt;
    while (static_cast<std::int64_t>(prompts.size()) < o_.batch && items.next(prompt)) {
      prompts.push_back(prompt);
      if (!items.waiting()) break;
    }
    return prompts;
  }

  std::vector<std::int32_t> encode(const std::string& prompt) const {
    EncodeOptions encode;
    encode.add_special_tokens = !o_.no_special;
    encode.parse_special = !o_.plain;
    encode.with_pieces = false;
    return package_.tokenizer.encode(prompt, encode).ids;
  }

  infer::GenerateOptions generate_options() const {
    infer::GenerateOptions options = o_.generate;
    options.seed = globals_.seed.value_or(0);
    options.logprobs = globals_.json;
    options.max_streams = o_.batch;
    return options;
  }

  std::vector<Answer> stream(const std::string& prompt,
                             const std::vector<std::vector<std::int32_t>>& ids) const {
    if (o_.echo) print_text(prompt);
    infer::GenerateHooks hooks;
    hooks.bytes = infer::token_bytes(package_.tokenizer);
    const auto begin = std::chrono::steady_clock::now();
    auto first = begin;
    bool any = false;
    hooks.on_text = [&](std::size_t, std::string_view text) {
      if (!any) first = std::chrono::steady_clock::now();
      any = true;
      print_text(text);
      return true;
    };
    const infer::Generated text =
        infer::generate(*package_.model, ids, generate_options(), hooks).front();
    print_text("\n");
    const std::chrono::duration<double> waited = first - begin,
                                        all = std::chrono::steady_clock::now() - begin;
    log_message(
        LogLevel::kDebug,
        fmt::format("prompt of {} tokens: first text after {:.3f} s; {} tokens in {:.3f} s, "
                    "{:.1f} tokens/s after the first; finish: {}",
                    ids.front().size(), waited.count(), text.ids.size(), all.count(),
                    static_cast<double>(text.ids.size() - (text.ids.empty() ? 0 : 1)) /
                        (all - waited).count(),
                    infer::finish_reason_name(text.finish)));
    return {};
  }

  std::vector<Answer> answers_of(const std::vector<std::vector<std::int32_t>>& ids) const {
    std::vector<Answer> answers;
    if (o_.beams > 1) {
      for (const std::vector<std::int32_t>& prompt : ids)
        answers.push_back(search(package_, prompt, o_));
      return answers;
    }
    infer::GenerateHooks hooks;
    hooks.bytes = infer::token_bytes(package_.tokenizer);
    for (infer::Generated& text : infer::generate(*package_.model, ids, generate_options(), hooks))
      answers.push_back({std::move(text), std::nullopt});
    return answers;
  }

  void print(const std::string& prompt, const Answer& answer) const {
    if (globals_.json) return print_json(answer_json(package_, prompt, answer, o_.logprobs));
    print_line(one_line((o_.echo ? prompt : "") + answer.text.text));
  }

  const GenerateVerbOptions& o_;
  const Globals& globals_;
  infer::LanguagePackage package_;
};

void add_sampling_options(CLI::App& verb, GenerateVerbOptions& o) {
  infer::SamplingOptions& s = o.generate.sampling;
  verb.add_option(
      "--temperature", o.temperature,
      "logits are divided by it; 0 is greedy (the default, or 1 where tokens are drawn)");
  verb.add_option("--top-k", s.top_k, "draws among the K most probable tokens");
  verb.add_option("--top-p", s.top_p, "draws among the most probable tokens that make up P");
  verb.add_option("--min-p", s.min_p,
                  "draws among tokens at least P times as probable as the best");
  verb.add_option("--repetition-penalty", s.repetition_penalty,
                  "of every token of prompt and continuation");
  verb.add_option("--presence-penalty", s.presence_penalty, "of every token of the continuation");
  verb.add_option("--frequency-penalty", s.frequency_penalty,
                  "of every token of the continuation, each time");
  verb.add_option("--logit-bias", o.logit_bias,
                  "ID=VALUE, added to that token's logit; -inf bars it")
      ->allow_extra_args(false);
  verb.add_option("--num-beams", o.beams, "beam search with so many beams");
  verb.add_option("--length-penalty", o.length_penalty,
                  "of beam search: scores are divided by length^A");
  verb.add_option("--early-stopping", o.early_stopping, "of beam search")
      ->check(CLI::IsMember({"false", "true", "never"}));
}

}  // namespace

void add_generate(CLI::App& app, Globals& globals) {
  auto o = std::make_shared<GenerateVerbOptions>();
  CLI::App* verb = app.add_subcommand("generate", "continues a text");
  verb->add_option("MODEL", o->model, "folder, .gguf or .bin of a language model")->required();
  verb->add_option("PROMPT", o->more, "texts to continue; - reads stdin, one a line");
  verb->add_option("--prompt", o->prompts, "the same; may be given several times")
      ->allow_extra_args(false);
  verb->add_option("--max-new-tokens", o->generate.max_new_tokens, "tokens to add at most");
  verb->add_option("--min-new-tokens", o->generate.min_new_tokens, "tokens to add at least");
  add_sampling_options(*verb, *o);
  verb->add_option("--stop", o->generate.stop, "ends before this text; may be given several times")
      ->allow_extra_args(false);
  verb->add_flag("--ignore-end", o->generate.ignore_end, "goes on behind the end-of-text token");
  verb->add_flag("--logprobs", o->logprobs, "a list of log-probabilities in the JSON");
  verb->add_flag("--echo", o->echo, "prints the prompt too");
  verb->add_flag("--no-special-tokens", o->no_special, "encodes the prompt as it is");
  verb->add_flag("--plain", o->plain, "special tokens written in the prompt are text");
  verb->add_option("--tokenizer", o->tokenizer, "folder or file, if not with the model");
  verb->add_option("--batch", o->batch, "prompts that run side by side")
      ->check(CLI::Range(1, 1024));
  verb->footer(
      "Examples:\n  qkv generate SmolLM2.gguf --prompt \"The capital of France is\"\n"
      "  qkv generate out/model - --json --max-new-tokens 20 < prompts.txt");
  verb->callback([o, &globals] {
    globals.run = [o, &globals] {
      o->prompts.insert(o->prompts.end(), o->more.begin(), o->more.end());
      for (std::string& prompt : o->prompts) prompt = unmark_brackets(std::move(prompt));
      for (std::string& stop : o->generate.stop) stop = unmark_brackets(std::move(stop));
      set_sampling(*o);
      GenerateRun(*o, globals).run();
      return 0;
    };
  });
}

}  // namespace qkv::inline v0
