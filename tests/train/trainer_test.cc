// The training loop on a task of its own: learning, resuming bit for bit, threads, refusals.
#include "train/trainer.h"

#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "qkv/error.h"
#include "qkv/threads.h"

#include "base/file.h"
#include "io/safetensors.h"
#include "models/encoder_classifier.h"
#include "support/errors.h"
#include "support/files.h"
#include "support/strings.h"
#include "support/tiny_task.h"
#include "train/checkpoint.h"

using namespace qkv;
using namespace qkv::testing;
using train::train_classifier;
using train::TrainHooks;
using train::TrainOutcome;
namespace fs = std::filesystem;

namespace {

TrainHooks stop_after(std::int64_t step) {
  TrainHooks hooks;
  hooks.stop = [step](std::int64_t now) { return now >= step; };
  return hooks;
}

}  // namespace

TEST(Trainer, learns_a_task_that_can_be_learnt) {
  const TinyTask task(120);
  const TrainOutcome outcome =
      train_classifier(task.config({"train.epochs=12", "train.accumulate=1",
                                    "data.test=" + (task.folder / "test.csv").string()}),
                       task.folder / "run", false);
  EXPECT_EQ(outcome.metric, "accuracy");
  EXPECT_GE(outcome.value, 0.95);
  EXPECT_GE(*outcome.test_accuracy, 0.9);
  EXPECT_GT(outcome.tokens_per_second, 0);
  EXPECT_GT(outcome.peak_bytes, 0);
  for (const char* name : {"config.json", "model.safetensors", "tokenizer.json", "run.json",
                           "metrics.jsonl", "checkpoints"}) {
    EXPECT_TRUE(fs::exists(task.folder / "run" / name)) << name;
  }
}

TEST(Trainer, records_every_step_with_the_figures_of_each_layer) {
  const TinyTask task;
  train_classifier(task.config(), task.folder / "run", false);
  const auto steps = records(task.folder / "run", "train");
  ASSERT_GE(steps.size(), 8u);
  for (std::size_t i = 0; i < steps.size(); ++i)
    EXPECT_EQ(steps[i].at("step").as_int(), static_cast<std::int64_t>(i) + 1);
  double squares = 0;
  int gammas = 0;
  for (const auto& [name, layer] : steps[0].at("layers").as_object()) {
    squares += layer.at("grad_norm").as_double() * layer.at("grad_norm").as_double();
    gammas += layer.contains("gamma");
  }
  EXPECT_NEAR(std::sqrt(squares), steps[0].at("grad_norm").as_double(), 1e-9);
  EXPECT_GE(gammas, 1);
  EXPECT_EQ(records(task.folder / "run", "eval").size(), 2u);
}

TEST(Trainer, b85_stopped_after_any_step_and_resumed_gives_the_same_bits) {
  const TinyTask task(80);
  const auto config = task.config({"train.eval_every=3", "train.token_dropout=0.1"});
  const TrainOutcome whole = train_classifier(config, task.folder / "whole", false);
  ASSERT_GE(whole.step, 9);
  const std::string weights = read_file(task.folder / "whole" / "model.safetensors");
  for (std::int64_t stop = 1; stop < whole.step; ++stop) {
    const fs::path run = task.folder / ("stopped" + std::to_string(stop));
    const TrainOutcome first = train_classifier(config, run, false, stop_after(stop));
    EXPECT_TRUE(first.interrupted);
    EXPECT_EQ(first.step, stop);
    const TrainOutcome second = train_classifier(config, run, true);
    EXPECT_FALSE(second.interrupted);
    EXPECT_EQ(second.loss, whole.loss) << stop;
    EXPECT_EQ(trace(run), trace(task.folder / "whole")) << stop;
    EXPECT_TRUE(read_file(run / "model.safetensors") == weights) << stop;
  }
}

TEST(Trainer, b85_stopped_after_every_step_gives_the_same_bits) {
  const TinyTask task;
  const auto config = task.config();
  const TrainOutcome whole = train_classifier(config, task.folder / "whole", false);
  const fs::path run = task.folder / "stepwise";
  TrainOutcome part = train_classifier(config, run, false, stop_after(0));
  for (int i = 0; part.interrupted && i < 100; ++i)
    part = train_classifier(config, run, true, stop_after(0));
  EXPECT_EQ(part.step, whole.step);
  EXPECT_EQ(trace(run), trace(task.folder / "whole"));
  EXPECT_TRUE(read_file(run / "model.safetensors") ==
              read_file(task.folder / "whole" / "model.safetensors"));
}

TEST(Trainer, bits_do_not_depend_on_the_number_of_threads) {
  const TinyTask task;
  const int before = num_threads();
  for (const int threads : {1, 2, 3}) {
    set_num_threads(threads);
    train_classifier(task.config(), task.folder / ("threads" + std::to_string(threads)), false);
  }
  set_num_threads(before);
  for (const char* other : {"threads2", "threads3"}) {
    EXPECT_EQ(trace(task.folder / other), trace(task.folder / "threads1"));
    for (const char* name : {"model.safetensors", "config.json", "tokenizer.json"}) {
      EXPECT_TRUE(read_file(task.folder / other / name) ==
                  read_file(task.folder / "threads1" / name))
          << name;
    }
  }
}

TEST(Trainer, another_seed_gives_other_weights) {
  const TinyTask task;
  train_classifier(task.config(), task.folder / "one", false);
  train_classifier(task.config({"train.seed=2"}), task.folder / "two", false);
  EXPECT_FALSE(read_file(task.folder / "one" / "model.safetensors") ==
               read_file(task.folder / "two" / "model.safetensors"));
}

TEST(Trainer, a_finished_run_resumes_to_its_result) {
  const TinyTask task;
  const TrainOutcome first = train_classifier(task.config(), task.folder / "run", false);
  const std::string weights = read_file(task.folder / "run" / "model.safetensors");
  const TrainOutcome again = train_classifier(task.config(), task.folder / "run", true);
  EXPECT_EQ(again.step, first.step);
  EXPECT_EQ(again.loss, first.loss);
  EXPECT_EQ(again.value, first.value);
  EXPECT_TRUE(read_file(task.folder / "run" / "model.safetensors") == weights);
}

TEST(Trainer, resume_without_a_checkpoint_starts_over) {
  const TinyTask task;
  train_classifier(task.config(), task.folder / "whole", false);
  train_classifier(task.config(), task.folder / "fresh", true);
  EXPECT_EQ(trace(task.folder / "fresh"), trace(task.folder / "whole"));
  // Killed before the first checkpoint: records of steps that are done again.
  fs::create_directory(task.folder / "killed");
  fs::copy(task.folder / "whole" / "run.json", task.folder / "killed" / "run.json");
  fs::copy(task.folder / "whole" / "metrics.jsonl", task.folder / "killed" / "metrics.jsonl");
  fs::create_directories(task.folder / "killed" / "checkpoints" / ".partial-step-000000003");
  train_classifier(task.config(), task.folder / "killed", true);
  EXPECT_EQ(trace(task.folder / "killed"), trace(task.folder / "whole"));
  EXPECT_FALSE(fs::exists(task.folder / "killed" / "checkpoints" / ".partial-step-000000003"));
}

TEST(Trainer, b64_a_damaged_newest_checkpoint_is_passed_over) {
  const TinyTask task;
  const auto config = task.config({"train.save_every=1"});
  train_classifier(config, task.folder / "whole", false);
  const fs::path run = task.folder / "run";
  train_classifier(config, run, false, stop_after(4));
  const fs::path newest = run / "checkpoints" / "step-000000004" / "weights.safetensors";
  fs::resize_file(newest, fs::file_size(newest) / 2);
  train_classifier(config, run, true);
  EXPECT_EQ(trace(run), trace(task.folder / "whole"));
}

TEST(Trainer, a_checkpoint_of_a_newer_format_is_refused) {
  const TinyTask task;
  train_classifier(task.config(), task.folder / "run", false, stop_after(2));
  const fs::path state = task.folder / "run" / "checkpoints" / "step-000000002" / "state.json";
  Json json = Json::parse(read_file(state));
  json["format_version"] = 99;
  write_file_atomic(state, json.dump());
  EXPECT_TRUE(has(
      message_of<ModelError>([&] { train_classifier(task.config(), task.folder / "run", true); }),
      "format version 99"));
}

TEST(Trainer, the_folder_of_another_run_is_refused) {
  const TinyTask task;
  const fs::path run = task.folder / "run";
  train_classifier(task.config(), run, false, stop_after(2));
  const std::string weights =
      read_file(run / "checkpoints" / "step-000000002" / "weights.safetensors");
  EXPECT_TRUE(has(message_of<ArgumentError>([&] { train_classifier(task.config(), run, false); }),
                  "--resume continues it"));
  EXPECT_TRUE(has(message_of<ArgumentError>(
                      [&] { train_classifier(task.config({"train.seed=5"}), run, true); }),
                  "train.seed was 1, is now 5"));
  fs::create_directory(task.folder / "other");
  task.folder.write("other/notes.txt", "mine");
  for (const bool resume : {false, true}) {
    EXPECT_TRUE(has(message_of<ArgumentError>(
                        [&] { train_classifier(task.config(), task.folder / "other", resume); }),
                    "files in it"));
  }
  EXPECT_EQ(read_file(task.folder / "other" / "notes.txt"), "mine");
  EXPECT_TRUE(has(message_of<ArgumentError>(
                      [&] { train_classifier(task.config(), task.folder / "train.csv", false); }),
                  "expected a folder"));
  // Nothing was lost.
  EXPECT_TRUE(read_file(run / "checkpoints" / "step-000000002" / "weights.safetensors") == weights);
}

TEST(Trainer, resuming_with_other_data_is_refused) {
  const TinyTask task;
  train_classifier(task.config(), task.folder / "run", false, stop_after(2));
  task.folder.write("train.csv", tiny_table(61));
  EXPECT_TRUE(has(message_of<ArgumentError>(
                      [&] { train_classifier(task.config(), task.folder / "run", true); }),
                  "expected the data that"));
}

TEST(Trainer, an_empty_folder_is_taken) {
  const TinyTask task;
  fs::create_directory(task.folder / "empty");
  EXPECT_EQ(train_classifier(task.config({"train.steps=1"}), task.folder / "empty", false).step, 1);
}

TEST(Trainer, stops_early_when_nothing_gets_better) {
  const TinyTask task;
  const TrainOutcome outcome =
      train_classifier(task.config({"train.steps=50", "train.eval_every=1", "train.early_stop=3",
                                    "train.learning_rate=0"}),
                       task.folder / "run", false);
  EXPECT_EQ(outcome.step, 4);
  EXPECT_EQ(outcome.best_step, 1);
  EXPECT_EQ(records(task.folder / "run", "event").back().at("event").as_string(), "early_stop");
}

TEST(Trainer, without_validation_a_share_is_taken_or_the_last_model_kept) {
  TinyTask task;
  task.folder.write("tiny.toml", std::string(kTinyToml).replace(
                                     std::string(kTinyToml).find("validation ="), 29, ""));
  const TrainOutcome split =
      train_classifier(task.config({"data.validation_share=0.3"}), task.folder / "split", false);
  EXPECT_EQ(split.metric, "accuracy");
  const auto evaluated = records(task.folder / "split", "eval");
  EXPECT_GT(evaluated[0].at("n").as_int(), 5);
  EXPECT_LT(evaluated[0].at("n").as_int(), 35);
  const TrainOutcome none =
      train_classifier(task.config({"data.validation_share=0"}), task.folder / "none", false);
  EXPECT_EQ(none.metric, "train_accuracy");
  EXPECT_GT(none.value, 0);
  EXPECT_TRUE(fs::exists(task.folder / "none" / "model.safetensors"));
}

TEST(Trainer, weights_that_are_not_finite_are_named_and_the_step_refused) {
  const TinyTask task;
  // A rate that throws the weights beyond fp32 within a few steps.
  const auto config = task.config({"train.learning_rate=1000", "train.optimizer=sgd",
                                   "train.clip_norm=0", "train.epochs=40", "train.warmup_steps=0",
                                   "train.weight_decay=1000000", "train.save_every=1"});
  const std::string message =
      message_of<NumericError>([&] { train_classifier(config, task.folder / "run", false); });
  EXPECT_TRUE(has(message, "is not finite; the first such value is in the")) << message;
  EXPECT_TRUE(has(message, "step ")) << message;
  EXPECT_EQ(records(task.folder / "run", "event").back().at("event").as_string(), "non_finite");
}

TEST(Trainer, fine_tuning_starts_from_the_folder) {
  const TinyTask task;
  train_classifier(task.config(), task.folder / "base", false);
  const std::string toml =
      "task = \"classify\"\n[model]\nfrom = \"base\"\n[data]\ntrain = \"train.csv\"\nvalidation = "
      "\"validation.csv\"\n[train]\nsteps = 1\nlearning_rate = 0\n";
  task.folder.write("tune.toml", toml);
  train_classifier(train::read_train_config(task.folder / "tune.toml"), task.folder / "tuned",
                   false);
  // With rate 0 nothing moves: the same weights, head included, since the labels are the same.
  EXPECT_TRUE(read_file(task.folder / "tuned" / "model.safetensors") ==
              read_file(task.folder / "base" / "model.safetensors"));
  // Other labels: a new head on the old body.
  task.folder.write("train.csv", "text,label\nI see the red car,a\nI want the blue house,b\n");
  task.folder.write("validation.csv", "text,label\nI see the red car,a\n");
  train_classifier(train::read_train_config(task.folder / "tune.toml"), task.folder / "new head",
                   false);
  const auto model = EncoderClassifier::load(task.folder / "new head");
  EXPECT_EQ(model.config().labels, (std::vector<std::string>{"a", "b"}));
}

TEST(Trainer, frozen_parameters_stay) {
  const TinyTask task;
  const auto config = task.config({"train.train=[\"classifier.*\"]", "train.learning_rate=0.1"});
  train_classifier(config, task.folder / "run", false);
  train_classifier(task.config({"train.train=[\"classifier.*\"]", "train.learning_rate=0"}),
                   task.folder / "still", false);
  const auto moved = EncoderClassifier::load(task.folder / "run"),
             still = EncoderClassifier::load(task.folder / "still");
  moved.module().for_each([&](const nn::Parameter& p) {
    const Tensor &a = p.var.value(), &b = still.module().find(p.name)->var.value();
    const bool same = std::memcmp(a.raw(), b.raw(), a.nbytes()) == 0;
    EXPECT_EQ(same, p.name.rfind("classifier.", 0) != 0) << p.name;
  });
}

TEST(Trainer, b27_accumulation_is_the_large_batch) {
  const TinyTask task;
  const std::vector<std::string> common = {"model.dropout=0", "train.steps=1",
                                           "train.learning_rate=1e-3", "train.warmup_steps=0"};
  auto small = common, large = common;
  small.insert(small.end(), {"train.batch_tokens=256", "train.accumulate=1000"});
  large.insert(large.end(), {"train.batch_tokens=1000000", "train.accumulate=1"});
  small[1] = "train.epochs=1";
  large[1] = "train.epochs=1";
  train_classifier(task.config(small), task.folder / "small", false);
  train_classifier(task.config(large), task.folder / "large", false);
  const auto a = records(task.folder / "small", "train"),
             b = records(task.folder / "large", "train");
  ASSERT_EQ(a.size(), 1u);
  ASSERT_EQ(b.size(), 1u);
  EXPECT_NEAR(a[0].at("loss").as_double(), b[0].at("loss").as_double(), 1e-6);
  EXPECT_NEAR(a[0].at("grad_norm").as_double(), b[0].at("grad_norm").as_double(), 1e-6);
}
