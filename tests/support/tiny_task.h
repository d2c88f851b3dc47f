// A small task that a small model learns in a second, written by the test itself.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/json.h"
#include "support/files.h"
#include "train/trainer.h"

namespace qkv::testing {

// Lines "text,label": the label is decided by one word among others.
std::string tiny_table(int lines, int first = 0);

constexpr const char* kTinyToml = R"(
task = "classify"
[model]
d_model = 16
num_layers = 1
num_heads = 2
d_ff = 32
dropout = 0.1
max_positions = 64
[tokenizer]
kind = "char"
[data]
train = "train.csv"
validation = "validation.csv"
[train]
epochs = 2
batch_tokens = 256
accumulate = 2
learning_rate = 5e-3
seed = 1
)";

// A folder with the configuration's files.
struct TinyTask {
  TempFolder folder;
  explicit TinyTask(int lines = 60) {
    folder.write("train.csv", tiny_table(lines));
    folder.write("validation.csv", tiny_table(15, 1000));
    folder.write("test.csv", tiny_table(15, 2000));
    folder.write("tiny.toml", kTinyToml);
  }
  train::TrainConfig config(const std::vector<std::string>& set = {}) const {
    return train::read_train_config(folder / "tiny.toml", set);
  }
};

// Records of one kind, in order.
std::vector<Json> records(const std::filesystem::path& run, const std::string& kind);

// What must not depend on threads, time or being stopped: steps, losses, rates and norms of a run.
std::vector<std::string> trace(const std::filesystem::path& run);

}  // namespace qkv::testing
