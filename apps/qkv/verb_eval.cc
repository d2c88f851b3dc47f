// qkv eval: how good a trained classifier is on a file of texts and labels.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/check.h"
#include "base/log.h"
#include "terminal.h"
#include "text/dataset.h"
#include "train/evaluate.h"
#include "train/package.h"
#include "verbs.h"

namespace qkv::inline v0 {
namespace {

struct EvalOptions {
  std::string model, data, text, label;
  bool truncate = false;
};

using Labels = std::vector<std::string>;

Json metric_json(const char* name, double value, std::int64_t n) {
  Json out = Json::object();
  out["metric"] = name;
  out["value"] = value;
  out["n"] = n;
  return out;
}

Json classes_json(const train::Evaluation& result, const Labels& labels) {
  Json out = Json::array();
  const auto classes = result.confusion.per_class();
  for (std::size_t i = 0; i < classes.size(); ++i) {
    Json row = Json::object();
    row["label"] = labels[i];
    row["precision"] = classes[i].precision;
    row["recall"] = classes[i].recall;
    row["f1"] = classes[i].f1;
    row["support"] = classes[i].support;
    out.push_back(std::move(row));
  }
  return out;
}

Json buckets_json(const train::Evaluation& result) {
  Json out = Json::array();
  for (const train::LengthBucket& bucket : result.buckets) {
    Json row = Json::object();
    row["from"] = bucket.from;
    row["to"] = bucket.to;
    row["n"] = bucket.n;
    row["accuracy"] = static_cast<double>(bucket.right) / static_cast<double>(bucket.n);
    out.push_back(std::move(row));
  }
  return out;
}

Json confusion_json(const train::Evaluation& result, const Labels& labels) {
  Json rows = Json::array(), names = Json::array();
  for (const std::string& label : labels) names.push_back(label);
  for (std::int64_t t = 0; t < result.confusion.classes(); ++t) {
    Json row = Json::array();
    for (std::int64_t p = 0; p < result.confusion.classes(); ++p)
      row.push_back(result.confusion.at(t, p));
    rows.push_back(std::move(row));
  }
  Json out = Json::object();
  out["labels"] = std::move(names);
  out["counts"] = std::move(rows);  // [truth][predicted]
  return out;
}

void print_metrics(const train::Evaluation& result, const Labels& labels) {
  const std::int64_t n = result.n();
  print_json(metric_json("loss", result.loss, n));
  Json macro = metric_json("macro_f1", result.confusion.macro_f1(), n);
  macro["per_class"] = classes_json(result, labels);
  print_json(macro);
  Json accuracy = metric_json("accuracy", result.confusion.accuracy(), n);
  accuracy["by_length"] = buckets_json(result);
  accuracy["confusion"] = confusion_json(result, labels);
  print_json(accuracy);
}

// The wrong answers that happen most, instead of a matrix of mostly zeros.
void print_confusions(const train::Evaluation& result, const Labels& labels) {
  struct Pair {
    std::int64_t count, truth, predicted;
  };
  std::vector<Pair> pairs;
  const auto& confusion = result.confusion;
  for (std::int64_t t = 0; t < confusion.classes(); ++t) {
    for (std::int64_t p = 0; p < confusion.classes(); ++p) {
      if (t != p && confusion.at(t, p) > 0) pairs.push_back({confusion.at(t, p), t, p});
    }
  }
  std::stable_sort(pairs.begin(), pairs.end(),
                   [](const Pair& a, const Pair& b) { return a.count > b.count; });
  if (pairs.empty()) return;
  print_line("\nmost frequent confusions (--json has the whole matrix)");
  for (std::size_t i = 0; i < std::min<std::size_t>(pairs.size(), 15); ++i) {
    print_line(fmt::format("{:>5}  {} taken for {}", pairs[i].count,
                           labels[static_cast<std::size_t>(pairs[i].truth)],
                           labels[static_cast<std::size_t>(pairs[i].predicted)]));
  }
}

void print_tables(const train::Evaluation& result, const Labels& labels) {
  print_line(fmt::format("{:>9} {:>8} {:>8} {:>8}  label", "precision", "recall", "f1", "texts"));
  const auto classes = result.confusion.per_class();
  for (std::size_t i = 0; i < classes.size(); ++i) {
    print_line(fmt::format("{:>9.3f} {:>8.3f} {:>8.3f} {:>8}  {}", classes[i].precision,
                           classes[i].recall, classes[i].f1, classes[i].support, labels[i]));
  }
  print_confusions(result, labels);
  print_line(fmt::format("\n{:>11} {:>8} {:>8}", "tokens", "texts", "accuracy"));
  for (const train::LengthBucket& bucket : result.buckets) {
    print_line(fmt::format("{:>11} {:>8} {:>8.4f}", fmt::format("{}-{}", bucket.from, bucket.to),
                           bucket.n,
                           static_cast<double>(bucket.right) / static_cast<double>(bucket.n)));
  }
  print_line(fmt::format("\nloss      {:.4f}\nmacro-F1  {:.4f}\naccuracy  {:.4f}  ({} texts)",
                         result.loss, result.confusion.macro_f1(), result.confusion.accuracy(),
                         result.n()));
}

int run_eval(const EvalOptions& options, const Globals& globals) {
  std::error_code ignored;
  require<ArgumentError>(std::filesystem::is_regular_file(options.data, ignored), "arguments",
                         "expected a file for --data, found none at {}", options.data);
  const train::ClassifierPackage package = train::load_classifier(options.model);
  const Labels& labels = package.model.config().labels;
  const std::string text = options.text.empty() ? package.facts.text : options.text;
  const std::string label = options.label.empty() ? package.facts.label : options.label;
  const std::vector<TextRow> rows = read_table(options.data, {.text = text, .label = label});
  const std::vector<std::int32_t> indices = train::label_indices(rows, labels, options.data);
  train::TextLimits limits = package.facts.limits;
  limits.truncate |= options.truncate;
  train::EncodedTexts encoded = train::encode_texts(rows, package.tokenizer, limits, options.data);
  if (encoded.truncated > 0) {
    log_message(LogLevel::kWarning, fmt::format("{} of {} texts were cut to {} tokens",
                                                encoded.truncated, rows.size(), limits.max_length));
  }
  const train::Evaluation result =
      train::evaluate(package.model, train::make_samples(std::move(encoded), indices));
  if (globals.json) {
    print_metrics(result, labels);
  } else {
    print_tables(result, labels);
  }
  return 0;
}

}  // namespace

void add_eval(CLI::App& app, Globals& globals) {
  auto options = std::make_shared<EvalOptions>();
  CLI::App* verb = app.add_subcommand("eval", "measures a trained classifier on a file");
  verb->add_option("MODEL", options->model, "folder of the model")->required();
  verb->add_option("--data", options->data, ".csv, .tsv or .jsonl with texts and labels")
      ->required();
  verb->add_option("--text", options->text, "column of the texts (default: as in training)");
  verb->add_option("--label", options->label, "column of the labels (default: as in training)");
  verb->add_flag("--truncate", options->truncate,
                 "cuts texts that are too long, instead of refusing them");
  verb->footer(
      "Examples:\n  qkv eval out/banking77 --data test.csv\n  qkv eval out/banking77 --data "
      "test.csv --json | tail -n 1");
  verb->callback([options, &globals] {
    globals.run = [options, &globals] { return run_eval(*options, globals); };
  });
}

}  // namespace qkv::inline v0
