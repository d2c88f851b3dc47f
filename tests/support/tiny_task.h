// A small task that a small model learns in a second, written by the test itself.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/file.h"
#include "base/json.h"
#include "support/files.h"
#include "train/trainer.h"

namespace qkv::testing {

// Lines "text,label": the label is decided by one word among others.
inline std::string tiny_table(int lines, int first = 0) {
  const char* const colours[] = {"red", "green", "blue"};
  const char* const things[] = {"car", "house", "tree", "river bank", "old wooden table"};
  const char* const verbs[] = {"see", "want", "sold", "never liked"};
  std::string out = "text,label\n";
  for (int i = first; i < first + lines; ++i) {
    out += fmt::format("I {} the {} {} {},{}\n", verbs[i % 4], colours[i % 3], things[i % 5], i,
                       colours[i % 3]);
  }
  return out;
}

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
inline std::vector<Json> records(const std::filesystem::path& run, const std::string& kind) {
  const std::string text = read_file(run / "metrics.jsonl");
  std::vector<Json> out;
  for (std::size_t start = 0; start < text.size();) {
    const std::size_t end = text.find('\n', start);
    Json json = Json::parse(text.substr(start, end - start));
    if (json.at("kind").as_string() == kind) out.push_back(std::move(json));
    start = end + 1;
  }
  return out;
}

// What must not depend on threads, time or being stopped: steps, losses, rates and norms of a run.
inline std::vector<std::string> trace(const std::filesystem::path& run) {
  std::vector<std::string> out;
  for (const Json& r : records(run, "train")) {
    out.push_back(fmt::format("{} {} {} {} {}", r.at("step").as_int(), r.at("loss").dump(),
                              r.at("learning_rate").dump(), r.at("grad_norm").dump(),
                              r.at("tokens").as_int()));
  }
  for (const Json& r : records(run, "eval")) {
    out.push_back(fmt::format("{} {} {}", r.at("step").as_int(), r.at("loss").dump(),
                              r.at("best").as_bool()));
  }
  return out;
}

}  // namespace qkv::testing
