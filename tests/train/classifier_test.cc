// The promised training and classifying calls of qkv/train.h and qkv/classifier.h.
#include "qkv/classifier.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "qkv/error.h"
#include "qkv/train.h"

#include "support/files.h"
#include "support/tiny_task.h"

using namespace qkv;
using namespace qkv::testing;

namespace {

const std::filesystem::path& trained() {
  static const TinyTask task(90);
  static const std::filesystem::path folder = [] {
    train::TrainOptions options;
    options.overrides = {"train.epochs=12", "train.accumulate=1"};
    train::train_classifier(task.folder / "tiny.toml", task.folder / "model", options);
    return task.folder / "model";
  }();
  return folder;
}

}  // namespace

TEST(Classifier, trains_loads_and_classifies) {
  const Classifier classifier = Classifier::load(trained());
  EXPECT_EQ(classifier.labels(), (std::vector<std::string>{"blue", "green", "red"}));
  const std::vector<std::string> texts = {"I want the red car 7", "I sold the blue tree 3",
                                          "I see the green house 5"};
  const std::vector<Prediction> predictions = classifier.classify(texts);
  ASSERT_EQ(predictions.size(), 3u);
  EXPECT_EQ(predictions[0].label, "red");
  EXPECT_EQ(predictions[1].label, "blue");
  EXPECT_EQ(predictions[2].label, "green");
  for (const Prediction& p : predictions) {
    double sum = 0;
    for (const double score : p.scores) sum += score;
    EXPECT_NEAR(sum, 1, 1e-12);
    EXPECT_EQ(p.score, *std::max_element(p.scores.begin(), p.scores.end()));
  }
  EXPECT_TRUE(classifier.classify({}).empty());
}

TEST(Classifier, names_the_text_that_cannot_be_classified) {
  const Classifier classifier = Classifier::load(trained());
  const auto message = [&](const std::string& text) {
    try {
      classifier.classify(std::vector<std::string>{"fine", text});
    } catch (const DataError& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_NE(message("  ").find("text:2: expected a text"), std::string::npos);
  EXPECT_NE(message("a\xff").find("text:2: expected UTF-8"), std::string::npos);
  EXPECT_NE(message(std::string(500, 'a')).find("text:2"), std::string::npos);
  const std::vector<std::string> long_text = {std::string(500, 'a')};
  EXPECT_EQ(classifier.classify(long_text, /*truncate=*/true).size(), 1u);
}

TEST(Classifier, refuses_folders_without_a_model) {
  const TempFolder empty;
  EXPECT_THROW(Classifier::load(empty / "nothing"), ArgumentError);
  EXPECT_THROW(Classifier::load(empty.path()), Error);
}

TEST(Classifier, serves_several_threads_at_once_with_the_same_bits) {
  const Classifier classifier = Classifier::load(trained());
  const std::vector<std::string> texts = {"I want the red car 7", "I sold the blue tree 3"};
  const std::vector<Prediction> expected = classifier.classify(texts);
  std::vector<std::vector<Prediction>> found(4);
  std::vector<std::thread> threads;
  for (auto& slot : found)
    threads.emplace_back([&] { slot = Classifier(classifier).classify(texts); });
  for (std::thread& thread : threads) thread.join();
  for (const auto& predictions : found) {
    ASSERT_EQ(predictions.size(), 2u);
    for (std::size_t i = 0; i < 2; ++i) EXPECT_EQ(predictions[i].scores, expected[i].scores);
  }
}

TEST(Train, configuration_faults_come_before_any_work) {
  const TinyTask task;
  train::TrainOptions options;
  options.overrides = {"model.d_modell=3"};
  EXPECT_THROW(train::train_classifier(task.folder / "tiny.toml", task.folder / "model", options),
               ConfigError);
  EXPECT_FALSE(std::filesystem::exists(task.folder / "model"));
}
