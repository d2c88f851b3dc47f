// qkv score: how probable texts are.
#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/check.h"
#include "infer/package.h"
#include "infer/score.h"
#include "terminal.h"
#include "verbs.h"

namespace qkv::inline v0 {
namespace {

struct ScoreVerbOptions {
  std::string model, tokenizer, context;
  std::vector<std::string> texts;
  infer::ScoreOptions score;
  bool has_context = false;
};

struct ScoredText {
  std::vector<std::int32_t> ids;
  infer::Score score;  // of the last ids
  std::size_t unscored() const { return ids.size() - score.tokens.size(); }
};

ScoredText score_text(const infer::LanguagePackage& package, const ScoreVerbOptions& o,
                      const std::string& text) {
  if (o.has_context) {
    infer::DividedText divided = infer::divide_text(package.tokenizer, o.context, text);
    return {divided.continuation,
            infer::score_continuation(*package.model, divided.context, divided.continuation)};
  }
  EncodeOptions encode;
  encode.with_pieces = false;
  std::vector<std::int32_t> ids = package.tokenizer.encode(text, encode).ids;
  infer::Score score = infer::score(*package.model, ids, o.score);
  return {std::move(ids), std::move(score)};
}

Json scored_json(const infer::LanguagePackage& package, const std::string& text,
                 const ScoredText& scored) {
  Json tokens = Json::array(), logprobs = Json::array();
  for (std::size_t i = 0; i < scored.ids.size(); ++i) {
    const Json logprob =
        i < scored.unscored() ? Json() : Json(scored.score.tokens[i - scored.unscored()].logprob);
    Json token = Json::object();
    token["id"] = std::int64_t{scored.ids[i]};
    token["piece"] = infer::piece_of(package.tokenizer, scored.ids[i]);
    token["logprob"] = logprob;
    tokens.push_back(std::move(token));
    logprobs.push_back(logprob);
  }
  Json out = Json::object();
  out["text"] = text;
  out["tokens"] = std::move(tokens);
  out["logprobs"] = std::move(logprobs);
  out["loglikelihood"] = scored.score.sum();
  out["is_greedy"] = scored.score.is_greedy();
  out["perplexity"] = scored.score.perplexity();
  return out;
}

int run_score(const ScoreVerbOptions& o, const Globals& globals) {
  const infer::LanguagePackage package = infer::load_language_package(o.model, o.tokenizer);
  ItemReader items(o.texts, "score");
  std::string text;
  while (items.next(text)) {
    const ScoredText scored = score_text(package, o, text);
    if (globals.json) {
      print_json(scored_json(package, text, scored));
    } else {
      print_line(
          fmt::format("{:.4f}\t{:.4f}\t{}", scored.score.perplexity(), scored.score.sum(), text));
    }
  }
  return 0;
}

}  // namespace

void add_score(CLI::App& app, Globals& globals) {
  auto o = std::make_shared<ScoreVerbOptions>();
  CLI::App* verb = app.add_subcommand(
      "score", "perplexity and log-likelihood of texts, and the log-probability of each token");
  verb->add_option("MODEL", o->model, "folder, .gguf or .bin of a language model")->required();
  verb->add_option("TEXT", o->texts, "texts; - reads stdin, one a line");
  CLI::Option* context = verb->add_option(
      "--context", o->context, "scores the texts as what follows this, as lm-eval does it");
  verb->add_option("--window", o->score.window,
                   "tokens of a window, for texts longer than the model's context");
  verb->add_option("--stride", o->score.stride, "tokens between the beginnings of two windows");
  verb->add_option("--tokenizer", o->tokenizer, "folder or file, if not with the model");
  verb->footer(
      "Examples:\n  qkv score SmolLM2.gguf \"The capital of France is Paris.\"\n"
      "  qkv score SmolLM2.gguf --context \"The capital of France is\" \" Paris\" --json");
  verb->callback([o, context, &globals] {
    o->has_context = context->count() > 0;
    globals.run = [o, &globals] {
      o->context = unmark_brackets(std::move(o->context));
      require<ArgumentError>((o->score.window > 0) == (o->score.stride > 0), "score",
                             "expected --window and --stride together, got one");
      require<ArgumentError>(!o->has_context || o->score.window == 0, "score",
                             "expected no --window with --context");
      return run_score(*o, globals);
    };
  });
}

}  // namespace qkv::inline v0
