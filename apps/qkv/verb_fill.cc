// qkv fill: the likeliest tokens at [MASK].
#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/check.h"
#include "models/text_model.h"
#include "ops/softmax.h"
#include "terminal.h"
#include "verbs.h"

namespace qkv::inline v0 {
namespace {

struct FillOptions {
  std::string model;
  std::vector<std::string> texts;
  std::int64_t top = 5;
  bool truncate = false;
};

struct Candidate {
  std::int32_t id = 0;
  double score = 0;
};

// The best of a row of logits, by probability; of equal ones the lower id first.
std::vector<Candidate> best_of(const Tensor& logits, std::int64_t row, std::int64_t count) {
  const Tensor scores = ops::softmax(logits.narrow(0, row, 1).to(DType::kFloat64));
  const double* p = scores.data<double>();
  std::vector<std::int32_t> order(static_cast<std::size_t>(scores.dim(1)));
  std::iota(order.begin(), order.end(), 0);
  const auto end = order.begin() + static_cast<std::ptrdiff_t>(std::min<std::int64_t>(
                                       count, static_cast<std::int64_t>(order.size())));
  std::partial_sort(order.begin(), end, order.end(), [&](std::int32_t a, std::int32_t b) {
    return p[a] > p[b] || (p[a] == p[b] && a < b);
  });
  std::vector<Candidate> best;
  for (auto it = order.begin(); it != end; ++it) best.push_back({*it, p[*it]});
  return best;
}

void print_candidates(const TextModel& model, const TextTokens& text,
                      const std::vector<std::int64_t>& masks, const Tensor& logits,
                      const FillOptions& options, bool json) {
  for (std::size_t m = 0; m < masks.size(); ++m) {
    for (const Candidate& c : best_of(logits, static_cast<std::int64_t>(m), options.top)) {
      std::vector<std::int32_t> ids = text.ids;
      ids[static_cast<std::size_t>(masks[m])] = c.id;
      const std::string sequence = model.tokenizer().decode(ids);
      const std::string token = model.tokenizer().decode(std::vector<std::int32_t>{c.id}, false);
      if (!json) {
        print_line(fmt::format("{:.4f}  {}  {}", c.score, token, sequence));
        continue;
      }
      Json line = Json::object();
      line["token"] = token;
      line["score"] = c.score;
      line["sequence"] = sequence;
      line["id"] = c.id;
      if (masks.size() > 1) line["mask"] = static_cast<std::int64_t>(m);
      print_json(line);
    }
  }
}

int run_fill(const FillOptions& options, const Globals& globals) {
  require<ArgumentError>(options.top >= 1, "arguments", "expected --top of at least 1, got {}",
                         options.top);
  ItemReader items(options.texts, "fill");
  const TextModel model = TextModel::load(options.model);
  require<ArgumentError>(model.model().config().head.kind == HeadKind::kMaskedLm, "fill",
                         "expected a masked language model, got one with the head {}",
                         head_kind_name(model.model().config().head.kind));
  const std::optional<std::int32_t> mask = model.tokenizer().special_id("mask");
  require<ModelError>(mask.has_value(), "fill", "expected a tokenizer with a mask token, got {}",
                      "one without");
  std::string text;
  while (items.next(text)) {
    const std::string source =
        items.from_stdin() ? fmt::format("stdin:{}: ", items.number()) : std::string();
    std::vector<TextTokens> tokens;
    try {
      tokens.push_back(model.tokens(text, options.truncate));
    } catch (const DataError& error) {
      fail<DataError>("fill", "{}{}", source, error_reason(error));
    }
    std::vector<std::vector<std::int64_t>> masks(1);
    for (std::size_t t = 0; t < tokens[0].ids.size(); ++t)
      if (tokens[0].ids[t] == *mask) masks[0].push_back(static_cast<std::int64_t>(t));
    require<DataError>(!masks[0].empty(), "fill", "{}expected a text with {}, got \"{}\"", source,
                       model.tokenizer().token(*mask), text);
    model.each_logits(
        tokens,
        [&](std::size_t, const Tensor& logits) {
          print_candidates(model, tokens[0], masks[0], logits, options, globals.json);
        },
        masks);
  }
  return 0;
}

}  // namespace

void add_fill(CLI::App& app, Globals& globals) {
  auto options = std::make_shared<FillOptions>();
  CLI::App* verb = app.add_subcommand("fill", "gives the likeliest tokens at [MASK]");
  verb->add_option("MODEL", options->model, "folder of the model")->required();
  verb->add_option("TEXT", options->texts,
                   "texts with [MASK] (<mask> for some models); - reads "
                   "stdin, one a line");
  verb->add_option("--top", options->top, "tokens to show for each [MASK]");
  verb->add_flag("--truncate", options->truncate,
                 "cuts texts that are too long, instead of refusing them");
  verb->footer(
      "Examples:\n  qkv fill models/bert-base-uncased \"the capital of france is [MASK].\"");
  verb->callback([options, &globals] {
    globals.run = [options, &globals] { return run_fill(*options, globals); };
  });
}

}  // namespace qkv::inline v0
