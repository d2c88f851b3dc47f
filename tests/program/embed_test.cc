// qkv embed and fill, as a user sees them.
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/json.h"
#include "support/files.h"
#include "support/process.h"

namespace {
using namespace qkv;
using qkv::testing::Finished;
using qkv::testing::run_qkv;
using qkv::testing::TempFolder;
namespace fs = std::filesystem;

// A tiny golden model with a WordPiece vocabulary beside it.
class PublishedModel : public ::testing::Test {
 protected:
  void use(const char* golden) const {
    const fs::path from = fs::path(QKV_SOURCE_DIR) / "tests/golden/families" / golden;
    for (const char* name : {"config.json", "model.safetensors"})
      fs::copy(from / name, folder_.path() / name);
    std::string vocabulary = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";
    for (char c = 'a'; c <= 'z'; ++c) vocabulary += std::string(1, c) + "\n";
    folder_.write("vocab.txt", vocabulary);
  }
  Finished run(const std::string& verb, std::vector<std::string> arguments,
               const std::string& input = "") const {
    arguments.insert(arguments.begin(), {verb, folder_.path().string()});
    return run_qkv(arguments, {.input = input, .environment = {}, .folder = ""});
  }
  static std::vector<Json> lines_of(const std::string& text) {
    std::vector<Json> lines;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = text.find('\n', at);
      lines.push_back(Json::parse(text.substr(at, end - at)));
      at = end + 1;
    }
    return lines;
  }
  TempFolder folder_;
};

TEST_F(PublishedModel, embed_gives_one_line_for_each_line) {
  use("bert_trunk");
  const Finished done = run("embed", {"-", "--json"}, "a b c\n\na b\n");
  ASSERT_EQ(done.status, 0) << done.err;
  const std::vector<Json> lines = lines_of(done.out);
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0].at("text").as_string(), "a b c");
  EXPECT_EQ(lines[1].at("embedding").size(), 8u);
  const Finished one = run("embed", {"a b", "--json"});
  EXPECT_EQ(lines_of(one.out).at(0).at("embedding"), lines[2].at("embedding"));
}

TEST_F(PublishedModel, embed_refuses_what_is_too_long_after_the_lines_before_it) {
  use("bert_trunk");
  const std::string text = "a b c d e f g h i j k l m n o p";
  const Finished done = run("embed", {"-", "--json"}, "a\n" + text + "\nb\n");
  EXPECT_EQ(done.status, 1);
  EXPECT_EQ(lines_of(done.out).size(), 1u);
  EXPECT_NE(done.err.find("stdin:2: expected a text of at most 16 tokens, got one of 18"),
            std::string::npos)
      << done.err;
  const Finished cut = run("embed", {text, "--truncate"});
  EXPECT_EQ(cut.status, 0);
  EXPECT_NE(cut.err.find("1 of 1 texts were cut to 16 tokens"), std::string::npos) << cut.err;
  const Finished chunks = run("embed", {text, "--chunk", "8", "--overlap", "2", "--json"});
  ASSERT_EQ(chunks.status, 0) << chunks.err;
  const Json all = lines_of(chunks.out).at(0).at("chunks");
  ASSERT_EQ(all.size(), 4u);  // 16 letters, six in a window, two of them repeated
  EXPECT_EQ(all.at(std::size_t{1}).at("start").as_int(), 8);
  EXPECT_EQ(all.at(std::size_t{3}).at("end").as_int(), 31);
}

TEST_F(PublishedModel, a_folder_of_pickles_is_told_how_to_convert_them) {
  use("bert_trunk");
  fs::remove(folder_.path() / "model.safetensors");
  fs::remove(folder_.path() / "vocab.txt");
  folder_.write("pytorch_model.bin", "pickle");
  const Finished done = run("embed", {"a"});
  EXPECT_EQ(done.status, 1);
  EXPECT_NE(done.err.find("convert them with: python3"), std::string::npos) << done.err;
}

TEST_F(PublishedModel, fill_gives_the_best_tokens_of_each_mask) {
  use("bert_masked_lm");
  const Finished done = run("fill", {"a [MASK] c [MASK]", "--top", "3", "--json"});
  ASSERT_EQ(done.status, 0) << done.err;
  const std::vector<Json> lines = lines_of(done.out);
  ASSERT_EQ(lines.size(), 6u);
  EXPECT_GE(lines[0].at("score").as_double(), lines[1].at("score").as_double());
  EXPECT_EQ(lines[3].at("mask").as_int(), 1);
  EXPECT_EQ(lines[0].at("sequence").as_string().substr(0, 2), "a ");
  EXPECT_EQ(run("fill", {"no mask"}).status, 1);
}

TEST_F(PublishedModel, fill_and_classify_name_the_head_that_is_there) {
  use("bert_trunk");
  const Finished fill = run("fill", {"a [MASK]"});
  EXPECT_EQ(fill.status, 2);
  EXPECT_NE(fill.err.find("masked language model"), std::string::npos) << fill.err;
  EXPECT_NE(run("classify", {"a"}).err.find("head none"), std::string::npos);
}

TEST_F(PublishedModel, classify_takes_any_sequence_classifier) {
  use("bert_sequence");
  const Finished done = run("classify", {"a b c", "--json"});
  ASSERT_EQ(done.status, 0) << done.err;
  const Json line = lines_of(done.out).at(0);
  double sum = 0;
  for (const char* label : {"no", "perhaps", "yes"}) sum += line.at("scores").at(label).as_double();
  EXPECT_NEAR(sum, 1, 1e-9);
  const Finished pair = run("classify", {"a b\tc", "--pair", "--json"});
  EXPECT_EQ(pair.status, 0) << pair.err;
  EXPECT_EQ(run("classify", {"a b", "--pair"}).status, 1);
  EXPECT_EQ(run("classify", {""}).status, 1);
}

}  // namespace
