// qkv classify: the label of each text, with a probability for every label.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/check.h"
#include "base/log.h"
#include "terminal.h"
#include "train/package.h"
#include "verbs.h"

namespace qkv::inline v0 {
namespace {

constexpr std::size_t kBatch = 256;  // texts at a time, when that many are waiting

struct ClassifyOptions {
  std::string model;
  std::vector<std::string> texts;
  int top = 1;
  bool truncate = false;
};

// Rows of one source, numbered by the argument or the line of stdin they come from.
std::vector<TextRow> next_rows(ItemReader& items) {
  std::vector<TextRow> rows;
  std::string text;
  while (rows.size() < kBatch && items.next(text)) {
    rows.push_back({text, "", items.number()});
    if (!items.waiting()) break;  // answer what is there before waiting for more
  }
  return rows;
}

Json answer_json(const std::string& text, const std::vector<std::string>& labels,
                 const std::vector<double>& scores, std::size_t best) {
  Json all = Json::object();
  for (std::size_t i = 0; i < labels.size(); ++i) all[labels[i]] = scores[i];
  Json out = Json::object();
  out["text"] = text;
  out["label"] = labels[best];
  out["score"] = scores[best];
  out["scores"] = std::move(all);
  return out;
}

void print_answer(const TextRow& row, const std::vector<std::string>& labels,
                  const std::vector<double>& scores, const ClassifyOptions& options, bool json) {
  const auto best =
      static_cast<std::size_t>(std::max_element(scores.begin(), scores.end()) - scores.begin());
  if (json) return print_json(answer_json(row.text, labels, scores, best));
  std::vector<std::size_t> order(labels.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return scores[a] > scores[b]; });
  order.resize(std::min(order.size(), static_cast<std::size_t>(options.top)));
  for (const std::size_t i : order)
    print_line(fmt::format("{:.4f}  {}  {}", scores[i], labels[i], row.text));
}

// Texts that were asked for and cut so far.
struct Counts {
  std::int64_t texts = 0, cut = 0;
};

void print_answers(const std::vector<TextRow>& rows, const std::vector<std::string>& labels,
                   const train::ClassifiedTexts& answers, const ClassifyOptions& options, bool json,
                   Counts& counts) {
  counts.texts += static_cast<std::int64_t>(rows.size());
  counts.cut += answers.truncated;
  for (std::size_t i = 0; i < rows.size(); ++i)
    print_answer(rows[i], labels, answers.scores[i], options, json);
}

int run_classify(const ClassifyOptions& options, const Globals& globals) {
  require<ArgumentError>(options.top >= 1, "arguments", "expected --top of at least 1, got {}",
                         options.top);
  ItemReader items(options.texts, "classify");
  const train::ClassifierPackage package = train::load_classifier(options.model);
  const std::vector<std::string>& labels = package.model.config().labels;
  Counts counts;
  for (std::vector<TextRow> rows = next_rows(items); !rows.empty(); rows = next_rows(items)) {
    const char* source = items.from_stdin() ? "stdin" : "argument";
    const auto classified = [&](const std::vector<TextRow>& part) {
      return train::classify_texts(package, part, options.truncate, source);
    };
    std::optional<train::ClassifiedTexts> answers;
    try {
      answers = classified(rows);
    } catch (const Error&) {
      if (rows.size() == 1) throw;
    }
    if (answers) {
      print_answers(rows, labels, *answers, options, globals.json, counts);
      continue;
    }
    for (const TextRow& row : rows)  // one of them is bad: those before it get their answers
      print_answers({row}, labels, classified({row}), options, globals.json, counts);
  }
  if (counts.cut > 0) {
    log_message(
        LogLevel::kWarning,
        fmt::format("{} of {} texts ({:.1f} %) were cut to {} tokens", counts.cut, counts.texts,
                    100.0 * static_cast<double>(counts.cut) / static_cast<double>(counts.texts),
                    package.facts.limits.max_length));
  }
  return 0;
}

}  // namespace

void add_classify(CLI::App& app, Globals& globals) {
  auto options = std::make_shared<ClassifyOptions>();
  CLI::App* verb = app.add_subcommand("classify", "says the label of each text");
  verb->add_option("MODEL", options->model, "folder of the model")->required();
  verb->add_option("TEXT", options->texts, "texts; - reads stdin, one a line");
  verb->add_option("--top", options->top, "labels to show for each text");
  verb->add_flag("--truncate", options->truncate,
                 "cuts texts that are too long, instead of refusing them");
  verb->footer(
      "Examples:\n  qkv classify out/banking77 \"my card has not arrived\"\n"
      "  qkv classify out/banking77 - --json < texts.txt");
  verb->callback([options, &globals] {
    globals.run = [options, &globals] { return run_classify(*options, globals); };
  });
}

}  // namespace qkv::inline v0
