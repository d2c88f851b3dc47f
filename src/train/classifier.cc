#include "qkv/classifier.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "train/evaluate.h"
#include "train/package.h"

namespace qkv::inline v0 {
namespace {

void check_texts(const std::vector<TextRow>& rows, const std::string& source) {
  for (const TextRow& row : rows) {
    const std::size_t bad = find_invalid_utf8(row.text);
    require<DataError>(bad == std::string::npos, "data",
                       "{}:{}: expected UTF-8, got something else at byte {}", source, row.line,
                       bad);
    require<DataError>(!is_blank(row.text), "data", "{}:{}: expected a text, got an empty one",
                       source, row.line);
  }
}

}  // namespace

namespace train {

ClassifiedTexts classify_texts(const ClassifierPackage& package, const std::vector<TextRow>& rows,
                               bool truncate, const std::string& source) {
  check_texts(rows, source);
  TextLimits limits = package.facts.limits;
  limits.truncate |= truncate;
  EncodedTexts encoded = encode_texts(rows, package.tokenizer, limits, source);
  ClassifiedTexts out{.scores = std::vector<std::vector<double>>(rows.size()),
                      .truncated = encoded.truncated};
  const std::vector<Sample> samples =
      make_samples(std::move(encoded), std::vector<std::int32_t>(rows.size(), -1));
  for_each_logits(package.model, samples, 4096, [&](std::size_t i, std::span<const float> logits) {
    out.scores[i] = softmax_of(logits);
  });
  return out;
}

}  // namespace train

struct Classifier::Impl {
  train::ClassifierPackage package;
};

Classifier Classifier::load(const std::filesystem::path& folder) {
  return Classifier(std::make_shared<const Impl>(Impl{train::load_classifier(folder)}));
}

const std::vector<std::string>& Classifier::labels() const {
  return impl_->package.model.config().labels;
}

std::vector<Prediction> Classifier::classify(std::span<const std::string> texts,
                                             bool truncate) const {
  std::vector<TextRow> rows;
  rows.reserve(texts.size());
  for (const std::string& text : texts)
    rows.push_back({text, "", static_cast<std::int64_t>(rows.size()) + 1});
  std::vector<Prediction> predictions;
  predictions.reserve(texts.size());
  train::ClassifiedTexts answers = train::classify_texts(impl_->package, rows, truncate, "text");
  for (std::vector<double>& scores : answers.scores) {
    const auto best = std::max_element(scores.begin(), scores.end()) - scores.begin();
    const auto index = static_cast<std::size_t>(best);
    const double score = scores[index];
    predictions.push_back({labels()[index], score, std::move(scores)});
  }
  return predictions;
}

}  // namespace qkv::inline v0
