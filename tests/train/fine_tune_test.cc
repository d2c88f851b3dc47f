// Published encoders under a new head: training, what is saved of them, and what is refused.
#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "qkv/error.h"

#include "base/file.h"
#include "models/checkpoint.h"
#include "models/encoder_classifier.h"
#include "support/errors.h"
#include "support/files.h"
#include "support/tiny_task.h"

using namespace qkv;
using namespace qkv::testing;
namespace fs = std::filesystem;

namespace {

// The tiny task, in words of a tiny published model (tests/golden/families) with a tokenizer.
struct Task : TinyTask {
  explicit Task(const std::string& family) : base(folder / "base") {
    fs::copy(fs::path(QKV_SOURCE_DIR) / "tests" / "golden" / "families" / family, base);
    const std::vector<std::string> words{"red",   "green", "blue",  "car",    "house", "tree",
                                         "river", "bank",  "old",   "wooden", "table", "see",
                                         "want",  "sold",  "never", "liked",  "the"};
    std::string vocabulary = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";
    for (const std::string& word : words) vocabulary += word + "\n";
    write_file_atomic(base / "vocab.txt", vocabulary);
    folder.write("fine.toml", R"(
task = "classify"
[model]
from = "base"
dropout = 0.1
[data]
train = "train.csv"
validation = "validation.csv"
[train]
epochs = 12
batch_tokens = 64
learning_rate = 5e-3
head_learning_rate = 3e-2
)");
  }
  train::TrainConfig config(const std::vector<std::string>& set = {}) const {
    return train::read_train_config(folder / "fine.toml", set);
  }
  Json json_of(const std::string& run) const {
    return Json::parse(read_file(folder / run / "config.json"), "config.json");
  }

  fs::path base;
};

class FineTuning : public ::testing::TestWithParam<const char*> {};

TEST_P(FineTuning, learns_and_comes_back_from_its_folder) {
  const Task task(GetParam());
  const train::TrainOutcome outcome =
      train::train_classifier(task.config({"model.pooling=mean"}), task.folder / "run", false);
  EXPECT_GT(outcome.value, 0.6);  // three labels
  EXPECT_EQ(task.json_of("run").at("model_type").as_string(), "qkv");
  EXPECT_EQ(task.json_of("run").at("classifier_pooling").as_string(), "mean");
  const EncoderClassifier model = EncoderClassifier::load(task.folder / "run");
  EXPECT_EQ(model.config().labels, (std::vector<std::string>{"blue", "green", "red"}));
  LoadOptions trunk;  // for vectors of its texts
  trunk.head = HeadKind::kNone;
  EXPECT_EQ(load_checkpoint(task.folder / "run", trunk).model.config().head.kind, HeadKind::kNone);
  model.save(task.folder / "again");
  for (const char* name : {"config.json", "model.safetensors"})
    EXPECT_TRUE(read_file(task.folder / "run" / name) == read_file(task.folder / "again" / name));
}

INSTANTIATE_TEST_SUITE_P(Families, FineTuning,
                         ::testing::Values("bert_trunk", "roberta_sequence", "distilbert_trunk",
                                           "mpnet_trunk", "modernbert_sequence"),
                         [](const auto& parameter) { return std::string(parameter.param); });

TEST(FineTuning, stopped_and_resumed_gives_the_same_bits) {
  const Task task("distilbert_trunk");
  const auto config = task.config({"train.epochs=2"});
  train::TrainHooks stop;
  stop.stop = [](std::int64_t step) { return step == 3; };
  train::train_classifier(config, task.folder / "whole", false);
  EXPECT_TRUE(train::train_classifier(config, task.folder / "parts", false, stop).interrupted);
  train::train_classifier(config, task.folder / "parts", true);
  EXPECT_EQ(trace(task.folder / "parts"), trace(task.folder / "whole"));
  EXPECT_TRUE(read_file(task.folder / "parts" / "model.safetensors") ==
              read_file(task.folder / "whole" / "model.safetensors"));
}

TEST(FineTuning, a_head_of_the_familys_own_stays_a_model_of_the_family) {
  const Task task("roberta_sequence");
  train::train_classifier(task.config({"train.epochs=1"}), task.folder / "run", false);
  EXPECT_EQ(task.json_of("run").at("model_type").as_string(), "roberta");
  EXPECT_EQ(EncoderClassifier::load(task.folder / "run").config().num_labels(), 3);
}

// The file's classifier, in the order of its labels.
std::vector<float> classifier_of(const fs::path& folder) {
  const EncoderClassifier model = EncoderClassifier::load(folder);
  const Tensor w = model.module().find("classifier.weight")->var.value();
  return {w.data<float>(), w.data<float>() + w.numel()};
}

TEST(FineTuning, a_head_is_kept_for_the_same_labels_in_the_models_order_and_else_is_new) {
  const Task task("roberta_sequence");
  std::string config = read_file(task.base / "config.json");
  for (const auto& [from, to] : {std::pair{R"("0": "no")", R"("0": "red")"},
                                 {R"("1": "perhaps")", R"("1": "blue")"},
                                 {R"("2": "yes")", R"("2": "green")"}}) {
    ASSERT_NE(config.find(from), std::string::npos);
    config.replace(config.find(from), std::string(from).size(), to);
  }
  const std::vector<std::string> still{"train.steps=1", "train.learning_rate=0",
                                       "train.head_learning_rate=0"};
  train::train_classifier(task.config(still), task.folder / "others", false);
  write_file_atomic(task.base / "config.json", config);
  train::train_classifier(task.config(still), task.folder / "same", false);
  const std::vector<float> file = classifier_of(task.base);
  EXPECT_EQ(EncoderClassifier::load(task.folder / "same").config().labels,
            (std::vector<std::string>{"red", "blue", "green"}));
  EXPECT_EQ(classifier_of(task.folder / "same"), file);
  EXPECT_NE(classifier_of(task.folder / "others"), file);
}

TEST(FineTuning, sentence_encoders_say_how_they_pool) {
  const Task task("bert_trunk");
  fs::create_directory(task.base / "1_Pooling");
  write_file_atomic(task.base / "modules.json", R"([
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}])");
  const fs::path pooling = task.base / "1_Pooling" / "config.json";
  write_file_atomic(pooling, R"({"pooling_mode_max_tokens": true})");
  train::train_classifier(task.config({"train.epochs=1"}), task.folder / "run", false);
  EXPECT_EQ(task.json_of("run").at("classifier_pooling").as_string(), "max");
  write_file_atomic(pooling, R"({"pooling_mode_weightedmean_tokens": true})");
  const auto again = [&](std::vector<std::string> set) {
    set.emplace_back("train.epochs=1");
    train::train_classifier(task.config(set), task.folder / "again", false);
  };
  EXPECT_NE(message_of<ModelError>([&] { again({}); }).find("pooling_mode_weightedmean_tokens"),
            std::string::npos);
  again({"model.pooling=first"});
  EXPECT_EQ(task.json_of("again").at("classifier_pooling").as_string(), "first");
}

TEST(FineTuning, a_vocabulary_larger_than_the_embedding_is_refused) {
  const Task task("bert_trunk");
  std::string vocabulary = read_file(task.base / "vocab.txt");
  for (int i = 0; i < 40; ++i) vocabulary += "word" + std::to_string(i) + "\n";
  write_file_atomic(task.base / "vocab.txt", vocabulary);
  const std::string message = message_of<ConfigError>(
      [&] { train::train_classifier(task.config(), task.folder / "run", false); });
  EXPECT_NE(message.find("expected a tokenizer of at most the model's 40 pieces, got 62"),
            std::string::npos)
      << message;
}

TEST(FineTuning, a_bare_encoder_is_no_classifier_yet) {
  const Task task("distilbert_trunk");
  EXPECT_TRUE(EncoderClassifier::is_published(task.base));
  const std::string message = message_of<ModelError>([&] { EncoderClassifier::load(task.base); });
  EXPECT_NE(message.find("qkv train with model.from"), std::string::npos) << message;
}

}  // namespace
