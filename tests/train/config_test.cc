// Training configurations: what is understood, what is refused, and with which words.
#include "train/config.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "qkv/error.h"

#include "support/files.h"
#include "support/strings.h"

using namespace qkv;
using qkv::testing::has;
using qkv::testing::TempFolder;
using train::parse_train_config;
using train::TrainConfig;

namespace {

class Config : public ::testing::Test {
 protected:
  Config() { folder_.write("train.csv", "text,label\na,x\n"); }

  TrainConfig parse(const std::string& toml, const std::vector<std::string>& set = {}) const {
    return parse_train_config("task = \"classify\"\n" + toml, folder_.path(), set, "test.toml");
  }
  TrainConfig with_data(const std::string& toml, const std::vector<std::string>& set = {}) const {
    return parse(toml + "\n[data]\ntrain = \"train.csv\"\n", set);
  }
  // The message of the refusal; fails the test if there is none.
  std::string refusal(const std::string& toml, const std::vector<std::string>& set = {}) const {
    try {
      with_data(toml, set);
    } catch (const ConfigError& error) {
      return error.what();
    }
    ADD_FAILURE() << "expected a refusal of " << toml;
    return {};
  }
  TempFolder folder_;
};

}  // namespace

TEST_F(Config, defaults_hold_where_nothing_is_said) {
  const TrainConfig config = with_data("");
  EXPECT_EQ(config.model.shape.d_model, 256);
  EXPECT_EQ(config.model.shape.num_layers, 4);
  EXPECT_DOUBLE_EQ(config.model.shape.hidden_dropout, 0.1);
  EXPECT_EQ(config.train.batch_tokens, 2048);
  EXPECT_DOUBLE_EQ(config.train.clip_norm, 1.0);
  EXPECT_EQ(config.data.train, folder_ / "train.csv");
}

TEST_F(Config, every_key_of_the_contract_is_read) {
  const TrainConfig config = parse(R"(
[model]
d_model = 64
num_layers = 2
num_heads = 4
num_kv_heads = 2
d_ff = 96
dropout = 0.3
attention_dropout = 0.0
hidden_dropout = 0.1
activation_dropout = 0.2
embedding_dropout = 0.4
max_positions = 40
vocab_size = 500
norm = "rms"
norm_placement = "sandwich"
activation = "swiglu"
positions = "rope"
tie_embeddings = false
attention = "window"
window = 8
pooling = "first"
[tokenizer]
kind = "wordpiece"
vocab_size = 400
[data]
train = "train.csv"
text = "sentence"
label = "class"
validation_share = 0.05
max_length = 30
truncate = true
[train]
steps = 100
epochs = 7
batch_tokens = 512
accumulate = 2
learning_rate = 5e-4
head_learning_rate = 5e-3
warmup_steps = 10
schedule = "linear"
optimizer = "adamw"
weight_decay = 0.05
betas = [0.8, 0.95]
eps = 1e-6
clip_norm = 0.5
label_smoothing = 0.1
token_dropout = 0.15
precision = "fp32"
checkpoint_activations = "none"
freeze = ["embeddings.*"]
train = ["*"]
seed = 3
deterministic = true
log_every = 5
eval_every = 20
save_every = 40
early_stop = 3
)");
  EXPECT_EQ(config.model.shape.kv_heads(), 2);
  EXPECT_EQ(config.model.shape.attention, AttentionKind::kWindow);
  EXPECT_EQ(config.model.shape.norm, NormChoice::kRms);
  EXPECT_DOUBLE_EQ(config.model.shape.attention_dropout, 0.0);
  EXPECT_DOUBLE_EQ(config.model.shape.embedding_dropout, 0.4);
  EXPECT_EQ(config.tokenizer.options.kind, TokenizerKind::kWordPiece);
  EXPECT_EQ(config.tokenizer.options.vocab_size, 400);
  EXPECT_EQ(config.data.text, "sentence");
  EXPECT_TRUE(config.data.truncate);
  EXPECT_EQ(config.train.warmup_steps, 10);
  EXPECT_DOUBLE_EQ(config.train.head_learning_rate, 5e-3);
  EXPECT_DOUBLE_EQ(config.train.beta2, 0.95);
  EXPECT_EQ(config.train.freeze, std::vector<std::string>{"embeddings.*"});
  EXPECT_EQ(config.train.early_stop, 3);
}

TEST_F(Config, a_misspelt_key_names_the_nearest_and_its_line) {
  const std::string message = refusal("[train]\nlearning_rte = 1e-3\n");
  EXPECT_TRUE(
      has(message, "train.learning_rte (line 3): unknown key; did you mean train.learning_rate?"))
      << message;
}

TEST_F(Config, a_key_in_the_wrong_table_is_sent_to_the_right_one) {
  EXPECT_TRUE(has(refusal("[train]\nd_model = 64\n"), "did you mean model.d_model?"));
  EXPECT_TRUE(has(refusal("batch_tokens = 64\n"), "did you mean train.batch_tokens?"));
  EXPECT_TRUE(has(refusal("[modle]\nd_model = 64\n"), "unknown table; did you mean [model]?"));
}

TEST_F(Config, all_faults_come_at_once) {
  const std::string message = refusal(
      "[model]\nd_model = 250\nnum_heads = 7\ndropout = 1.5\n[train]\nsteps = \"many\"\nschedul = "
      "\"cosine\"\n");
  EXPECT_TRUE(has(message, "test.toml has 4 faults")) << message;
  EXPECT_TRUE(has(message, "model.d_model")) << message;
  EXPECT_TRUE(has(message, "expected a multiple of num_heads 7, got 250")) << message;
  EXPECT_TRUE(has(message, "model.dropout (line 5): expected 0 to 1, got 1.5")) << message;
  EXPECT_TRUE(has(message, "train.steps (line 7): expected a whole number, got \"many\""))
      << message;
  EXPECT_TRUE(has(message, "did you mean train.schedule?")) << message;
}

TEST_F(Config, types_are_not_coerced) {
  EXPECT_TRUE(has(refusal("[train]\nsteps = 1.5\n"), "expected a whole number, got 1.5"));
  EXPECT_TRUE(has(refusal("[train]\nseed = true\n"), "expected a whole number, got true"));
  EXPECT_TRUE(has(refusal("[model]\nnorm = 1\n"), "expected text in quotes, got 1"));
  EXPECT_TRUE(has(refusal("[train]\nfreeze = \"all\"\n"), "expected a list of texts"));
  EXPECT_TRUE(has(refusal("[train]\nbetas = [0.9]\n"), "expected a list of 2 numbers"));
  EXPECT_TRUE(has(refusal("[train]\nlearning_rate = nan\n"), "expected 0 to 1000"));
  EXPECT_TRUE(has(refusal("train = 3\n"), "expected a table [train]"));
}

TEST_F(Config, what_comes_later_is_refused_by_name) {
  EXPECT_TRUE(has(refusal("[train]\nprecision = \"bf16\"\n"),
                  "\"bf16\" is not part of this version; it has fp32"));
  EXPECT_TRUE(has(refusal("[model]\npositions = \"alibi\"\n"), "not part of this version"));
  EXPECT_TRUE(has(refusal("[tokenizer]\nkind = \"unigram\"\n"), "not part of this version"));
  EXPECT_TRUE(
      has(refusal("[train]\ncheckpoint_activations = \"block\"\n"), "not part of this version"));
  EXPECT_TRUE(has(refusal("[model]\ntie_embeddings = true\n"), "nothing to tie"));
  try {
    parse_train_config("task = \"lm\"\n[data]\ntrain = \"train.csv\"\n", folder_.path());
    FAIL() << "expected a refusal";
  } catch (const ConfigError& error) {
    EXPECT_TRUE(has(error.what(), "\"lm\" is not part of this version; it has classify"))
        << error.what();
  }
}

TEST_F(Config, a_head_that_moves_alone_is_sent_to_the_key_for_it) {
  const std::string message = refusal("[train]\nlearning_rate = 0\nhead_learning_rate = 1e-3\n");
  EXPECT_TRUE(has(message, "set train.train = [\"classifier.*\"]")) << message;
}

TEST_F(Config, an_unknown_word_names_the_known_ones) {
  const std::string message = refusal("[train]\nschedule = \"cosin\"\n");
  EXPECT_TRUE(has(
      message,
      "expected one of cosine, linear, constant, step, inverse_sqrt, got \"cosin\"; did you mean "
      "\"cosine\"?"))
      << message;
}

TEST_F(Config, overrides_win_and_take_plain_words) {
  const TrainConfig config =
      with_data("[train]\nsteps = 5\n", {"train.steps=9", "train.schedule=linear",
                                         "train.learning_rate = 2e-3", "train.freeze=[\"a*\"]"});
  EXPECT_EQ(config.train.steps, 9);
  EXPECT_EQ(config.train.schedule, train::ScheduleKind::kLinear);
  EXPECT_DOUBLE_EQ(config.train.learning_rate, 2e-3);
  EXPECT_EQ(config.train.freeze.size(), 1u);
  EXPECT_TRUE(has(refusal("", {"train.step=9"}), "did you mean train.steps?"));
  EXPECT_TRUE(has(refusal("", {"train.steps"}), "expected --set section.key=value"));
  EXPECT_TRUE(has(refusal("", {"=3"}), "expected --set section.key=value"));
}

TEST_F(Config, paths_are_relative_to_the_configuration) {
  std::filesystem::create_directory(folder_ / "子 folder");
  folder_.write("子 folder/run.toml", "task = \"classify\"\n[data]\ntrain = \"../train.csv\"\n");
  const TrainConfig config = train::read_train_config(folder_ / "子 folder" / "run.toml");
  EXPECT_EQ(config.data.train, folder_ / "train.csv");
}

TEST_F(Config, files_that_are_not_there_are_named) {
  EXPECT_TRUE(has(refusal("[tokenizer]\nfrom = \"nowhere\"\n"),
                  "found nothing at " + (folder_ / "nowhere").string()));
  EXPECT_THROW(train::read_train_config(folder_ / "missing.toml"), ConfigError);
  EXPECT_THROW(train::read_train_config(folder_.path()), ConfigError);
  try {
    parse("");
    FAIL() << "expected a refusal";
  } catch (const ConfigError& error) {
    EXPECT_TRUE(has(error.what(), "data.train: expected the file of training texts; it is missing"))
        << error.what();
  }
}

TEST_F(Config, text_that_is_not_toml_gives_the_line) {
  EXPECT_TRUE(has(refusal("[train\nsteps = 1\n"), "test.toml:2:"));
  EXPECT_THROW(parse_train_config("a = \"\xC3\"", folder_.path()), ConfigError);
  EXPECT_THROW(parse_train_config("a = 1979-05-27", folder_.path()), ConfigError);
  EXPECT_THROW(parse_train_config("a = 1\na = 2", folder_.path()), ConfigError);
}

TEST_F(Config, texts_longer_than_the_table_cannot_be_asked_for) {
  EXPECT_TRUE(has(refusal("[model]\nmax_positions = 32\n", {"data.max_length=33"}),
                  "data.max_length: expected at most model.max_positions 32, got 33"));
  EXPECT_EQ(with_data("[model]\nmax_positions = 32\npositions = \"rope\"\n", {"data.max_length=33"})
                .data.max_length,
            33);
}

TEST_F(Config, fine_tuning_takes_its_shape_from_the_folder) {
  std::filesystem::create_directory(folder_ / "old");
  const TrainConfig config = with_data("[model]\nfrom = \"old\"\nhidden_dropout = 0.3\n");
  EXPECT_EQ(config.tokenizer.from, folder_ / "old");
  EXPECT_DOUBLE_EQ(config.model.shape.hidden_dropout, 0.3);
  EXPECT_EQ(config.model.shape.attention_dropout, train::kKeepDropout);
  EXPECT_TRUE(has(refusal("[model]\nfrom = \"old\"\nd_model = 64\n"),
                  "stands in the folder of model.from"));
}

TEST_F(Config, bert_is_what_post_norm_means_unless_said_otherwise) {
  EXPECT_TRUE(with_data("[model]\nnorm_placement = \"post\"\n").model.shape.embedding_norm);
  EXPECT_FALSE(with_data("[model]\nnorm_placement = \"post\"\nembedding_norm = false\n")
                   .model.shape.embedding_norm);
  EXPECT_FALSE(with_data("").model.shape.embedding_norm);
}

TEST_F(Config, text_and_label_are_two_columns) {
  EXPECT_TRUE(has(refusal("", {"data.label=text"}),
                  "data.label: expected another column than data.text, got \"text\" for both"));
}

TEST_F(Config, eps_of_adamw_is_above_zero) {
  EXPECT_TRUE(
      has(refusal("[train]\neps = 0.0\n"), "train.eps (line 3): expected 1e-30 to 1, got 0"));
  EXPECT_TRUE(has(refusal("[train]\neps = nan\n"), "train.eps (line 3): expected 1e-30 to 1"));
}

TEST_F(Config, paths_that_cannot_be_looked_at_are_faults) {
  EXPECT_TRUE(
      has(refusal("", {"data.test=" + std::string(5000, 'a')}), "data.test: expected an existing"));
}
