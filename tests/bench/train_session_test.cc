// Training in turns is training, and what is exported is what it trains on.
#include "bench/train_session.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/file.h"
#include "base/json.h"
#include "io/safetensors.h"
#include "support/files.h"
#include "support/tiny_task.h"
#include "train/trainer.h"

using namespace qkv;
using namespace qkv::bench;
using namespace qkv::testing;

namespace {

TrainSession session_of(const TinyTask& task, const train::TrainConfig& config) {
  return {train::build_run(config, task.folder / "run", false), config};
}

}  // namespace

TEST(TrainSession, turns_give_the_losses_of_training) {
  const TinyTask task;
  const train::TrainConfig config = task.config({"train.accumulate=1", "train.log_every=1"});
  train::train_classifier(config, task.folder / "trained", false);
  std::vector<double> expected;
  const std::string records = read_file(task.folder / "trained" / "metrics.jsonl");
  for (std::size_t start = 0; start < records.size();) {
    const std::size_t end = records.find('\n', start);
    const Json record = Json::parse(records.substr(start, end - start));
    if (record.at("kind").as_string() == "train") expected.push_back(record.at("loss").as_double());
    start = end + 1;
  }
  ASSERT_GE(expected.size(), 4u);
  TrainSession session = session_of(task, config);
  std::vector<double> losses = session.run(1).losses;
  const Turn rest = session.run(static_cast<std::int64_t>(expected.size()) - 1);
  EXPECT_GT(rest.tokens, 0);
  EXPECT_GT(rest.seconds, 0);
  EXPECT_GT(rest.flops, 0);
  losses.insert(losses.end(), rest.losses.begin(), rest.losses.end());
  ASSERT_EQ(losses.size(), expected.size());
  for (std::size_t i = 0; i < losses.size(); ++i) EXPECT_DOUBLE_EQ(losses[i], expected[i]) << i;
}

TEST(TrainSession, export_holds_ids_plan_weights_and_recipe) {
  const TinyTask task;
  const train::TrainConfig config = task.config({"train.accumulate=1", "train.epochs=2"});
  const TrainSession session = session_of(task, config);
  session.export_to(task.folder / "export");
  const auto data = io::SafetensorsFile::open(task.folder / "export" / "data.safetensors");
  const std::int64_t texts = data.tensor("train.labels").numel();
  const Tensor starts = data.tensor("train.starts");
  EXPECT_EQ(starts.numel(), texts + 1);
  EXPECT_EQ(starts.data<std::int64_t>()[texts], data.tensor("train.ids").numel());
  // Two epochs: every text twice, and the batches cover the plan.
  const Tensor members = data.tensor("plan.samples"), batches = data.tensor("plan.starts");
  ASSERT_EQ(members.numel(), 2 * texts);
  std::vector<int> seen(static_cast<std::size_t>(texts));
  for (std::int64_t i = 0; i < members.numel(); ++i)
    ++seen[static_cast<std::size_t>(members.data<std::int64_t>()[i])];
  EXPECT_TRUE(std::all_of(seen.begin(), seen.end(), [](int n) { return n == 2; }));
  EXPECT_EQ(batches.data<std::int64_t>()[batches.numel() - 1], members.numel());
  const Json recipe = Json::parse(read_file(task.folder / "export" / "recipe.json"));
  EXPECT_EQ(recipe.at("width").as_int(), 16);
  EXPECT_EQ(recipe.at("total_steps").as_int(), batches.numel() - 1);
  const EncoderClassifier initial = EncoderClassifier::load(task.folder / "export" / "initial");
  EXPECT_EQ(initial.module().num_parameters(), session.model().module().num_parameters());
}

TEST(TrainSession, answers_turns_and_refuses_other_lines) {
  const TinyTask task;
  TrainSession session =
      session_of(task, task.config({"train.accumulate=1", "data.test=test.csv"}));
  std::vector<std::string> lines{"2", "accuracy"};
  std::vector<Json> answers;
  const auto next = [&](std::string& line) {
    if (lines.empty()) return false;
    line = lines.front();
    lines.erase(lines.begin());
    return true;
  };
  serve_turns(session, next, [&](const Json& answer) { answers.push_back(answer); });
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_EQ(answers[0].at("steps").as_int(), 2);
  EXPECT_EQ(answers[0].at("losses").size(), 2u);
  EXPECT_GT(answers[0].at("peak_bytes").as_int(), 0);
  const double accuracy = answers[1].at("accuracy").as_double();
  EXPECT_TRUE(accuracy >= 0 && accuracy <= 1);
  for (const char* bad : {"0", "-3", "x", "3 4", ""}) {
    lines = {bad};
    EXPECT_THROW(serve_turns(session, next, [](const Json&) {}), ArgumentError) << bad;
  }
}
