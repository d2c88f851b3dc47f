// qkv classify: the label of each text, with a probability for every label.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/check.h"
#include "base/file.h"
#include "base/log.h"
#include "models/text_model.h"
#include "ops/softmax.h"
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
  bool truncate = false, pair = false;
};

// Any model that gives labels: one of ours, with what its training said, or a published one.
struct AnyClassifier {
  std::vector<std::string> labels;
  std::int64_t max_length = 0;
  std::function<train::ClassifiedTexts(const std::vector<TextRow>&, const std::string& source)>
      classify;
};

AnyClassifier own_classifier(const ClassifyOptions& options) {
  require<ArgumentError>(!options.pair, "arguments",
                         "expected --pair for published models only, got {}", options.model);
  auto package =
      std::make_shared<const train::ClassifierPackage>(train::load_classifier(options.model));
  const bool truncate = options.truncate;
  return {package->model.config().labels, package->facts.limits.max_length,
          [package, truncate](const std::vector<TextRow>& rows, const std::string& source) {
            return train::classify_texts(*package, rows, truncate, source);
          }};
}

// Probabilities as the model was trained: each label by itself, or one of all of them.
std::vector<double> scores_of(const Tensor& logits, const std::string& problem) {
  const Tensor values = logits.to(DType::kFloat64).contiguous();
  const auto n = static_cast<std::size_t>(values.numel());
  std::vector<double> scores(values.data<double>(), values.data<double>() + n);
  if (problem == "regression") return scores;
  if (n == 1 || problem == "multi_label_classification") {
    for (double& score : scores) score = 1 / (1 + std::exp(-score));
    return scores;
  }
  const Tensor shares = ops::softmax(values);
  return {shares.data<double>(), shares.data<double>() + n};
}

TextTokens published_tokens(const TextModel& model, const TextRow& row,
                            const ClassifyOptions& options) {
  require<DataError>(!is_blank(row.text), "text", "expected a text, got {}", "an empty one");
  if (!options.pair) return model.tokens(row.text, options.truncate);
  const std::size_t tab = row.text.find('\t');
  require<DataError>(tab != std::string::npos, "text",
                     "expected two texts with a tab between them, got \"{}\"", row.text);
  return model.tokens(row.text.substr(0, tab), row.text.substr(tab + 1), options.truncate);
}

AnyClassifier published_classifier(const ClassifyOptions& options) {
  auto model = std::make_shared<const TextModel>(TextModel::load(options.model));
  const HeadConfig& head = model->model().config().head;
  require<ArgumentError>(head.kind == HeadKind::kSequence, "classify",
                         "expected a model with a head for whole texts, got one with the head {}",
                         head_kind_name(head.kind));
  const Json* type = model->config().find("problem_type");
  const std::string problem = type != nullptr && type->is_string() ? type->as_string() : "";
  return {head.labels, model->max_length(),
          [model, options, problem](const std::vector<TextRow>& rows, const std::string& source) {
            train::ClassifiedTexts out;
            std::vector<TextTokens> texts;
            for (const TextRow& row : rows) {
              try {
                texts.push_back(published_tokens(*model, row, options));
              } catch (const DataError& error) {
                fail<DataError>("data", "{}:{}: {}", source, row.line, error_reason(error));
              }
              out.truncated += texts.back().cut ? 1 : 0;
            }
            out.scores.resize(rows.size());
            model->each_logits(texts, [&](std::size_t i, const Tensor& logits) {
              out.scores[i] = scores_of(logits, problem);
            });
            return out;
          }};
}

// Folders of training runs say how texts were taken; other ones are published models.
AnyClassifier load_any(const ClassifyOptions& options) {
  const std::filesystem::path folder(options.model);
  std::error_code code;
  if (std::filesystem::exists(folder / train::kRunFile, code) ||
      !std::filesystem::exists(folder / "config.json", code))
    return own_classifier(options);
  const std::string path = (folder / "config.json").string();
  const Json config = Json::parse(read_file(path), path);
  return is_known_family(config) ? published_classifier(options) : own_classifier(options);
}

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
  const AnyClassifier classifier = load_any(options);
  const std::vector<std::string>& labels = classifier.labels;
  Counts counts;
  for (std::vector<TextRow> rows = next_rows(items); !rows.empty(); rows = next_rows(items)) {
    const char* source = items.from_stdin() ? "stdin" : "argument";
    const auto classified = [&](const std::vector<TextRow>& part) {
      return classifier.classify(part, source);
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
                    classifier.max_length));
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
  verb->add_flag("--pair", options->pair, "each text is two, with a tab between them");
  verb->footer(
      "Examples:\n  qkv classify out/banking77 \"my card has not arrived\"\n"
      "  qkv classify out/banking77 - --json < texts.txt");
  verb->callback([options, &globals] {
    globals.run = [options, &globals] { return run_classify(*options, globals); };
  });
}

}  // namespace qkv::inline v0
