// qkv tokenize, as a user sees it.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "qkv/tokenizer.h"

#include "base/json.h"
#include "support/files.h"
#include "support/process.h"

namespace {
using namespace qkv;
using qkv::testing::Finished;
using qkv::testing::run_qkv;

class Tokenize : public ::testing::Test {
 protected:
  void SetUp() override {
    TokenizerOptions options;
    options.vocab_size = 300;
    const std::vector<std::string> texts = {"the red one, the red one", "红色的充电宝 红色的"};
    Tokenizer::train(texts, options).save(model());
  }
  std::string model() const { return (folder_ / "a model 模型").string(); }
  Finished run(std::vector<std::string> arguments, const std::string& input = "") const {
    arguments.insert(arguments.begin(), {"tokenize", model()});
    return run_qkv(arguments, {.input = input, .environment = {}, .folder = ""});
  }
  qkv::testing::TempFolder folder_;
};

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

TEST_F(Tokenize, json_has_ids_tokens_and_offsets) {
  const Finished done = run({"the 红", "--json"});
  ASSERT_EQ(done.status, 0) << done.err;
  const Json out = Json::parse(done.out);
  EXPECT_EQ(out.at("text").as_string(), "the 红");
  const Json& tokens = out.at("tokens");
  EXPECT_EQ(tokens.at(std::size_t{0}).as_string(), "[CLS]");
  EXPECT_EQ(tokens.at(tokens.size() - 1).as_string(), "[SEP]");
  EXPECT_EQ(out.at("ids").size(), tokens.size());
  const Json& offsets = out.at("offsets");
  ASSERT_EQ(offsets.size(), tokens.size());
  EXPECT_EQ(offsets.at(1).dump(), "[0,3]");
  EXPECT_EQ(offsets.at(offsets.size() - 2).at(1).as_int(), 5);
}

TEST_F(Tokenize, cuts_and_pads_only_where_asked) {
  const auto ids = [&](std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"the red one", "--json"});
    const Finished done = run(flags);
    EXPECT_EQ(done.status, 0) << done.err;
    return Json::parse(done.out);
  };
  EXPECT_GT(ids({}).at("ids").size(), 3u);
  EXPECT_EQ(ids({"--max-length", "3"}).at("ids").size(), 3u);
  const Json padded = ids({"--pad", "20"});
  EXPECT_EQ(padded.at("ids").size(), 20u);
  EXPECT_EQ(padded.at("tokens").at(19).as_string(), "[PAD]");
  EXPECT_EQ(padded.at("offsets").size(), 20u);
  const Finished refused = run({"the", "--max-length", "1"});
  EXPECT_EQ(refused.status, 2);
  EXPECT_NE(refused.err.find("special tokens"), std::string::npos) << refused.err;
  EXPECT_EQ(run({"the", "--max-length", "0"}).status, 2);
}

TEST_F(Tokenize, b54_broken_bytes_are_replaced_where_asked) {
  EXPECT_EQ(run({"-"}, "the \xFF\n").status, 1);
  const Finished done = run({"-", "--json", "--replace-invalid"}, "the \xFF\n");
  ASSERT_EQ(done.status, 0) << done.err;
  EXPECT_FALSE(Json::parse(done.out).at("ids").as_array().empty());
}

TEST_F(Tokenize, reads_the_vocabulary_inside_a_gguf_file) {
  QKV_SHARED_OR_SKIP(path, "data/tokenizers/ggml-vocab/ggml-vocab-gpt-2.gguf");
  const Finished done = run_qkv({"tokenize", path.string(), "Hello world", "--no-special"},
                                {.input = "", .environment = {}, .folder = ""});
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_EQ(done.out, "15496 995\tHello Ġworld\n");
}

TEST_F(Tokenize, one_line_of_output_for_each_line_of_input) {
  for (const char* input : {"the\n\n红色\r\nlast", "the\n\n红色\nlast\n"}) {
    const Finished done = run({"-"}, input);
    ASSERT_EQ(done.status, 0) << done.err;
    const std::vector<std::string> lines = lines_of(done.out);
    ASSERT_EQ(lines.size(), 4u);
    EXPECT_EQ(lines[1], "2 3\t[CLS] [SEP]");
  }
}

TEST_F(Tokenize, decoding_brings_the_lines_back) {
  const std::string input = "the red one\n\n充电宝, naïve 😀\n  spaces  \n";
  const Finished ids = run({"-"}, input);
  const Finished back = run({"--decode", "-"}, ids.out);
  ASSERT_EQ(back.status, 0) << back.err;
  EXPECT_EQ(back.out, input);
  const Json json = Json::parse(run({"--decode", "--keep-special", "--json", "2, 3"}).out);
  EXPECT_EQ(json.at("text").as_string(), "[CLS][SEP]");
  EXPECT_EQ(json.at("ids").dump(), "[2,3]");
}

TEST_F(Tokenize, brackets_and_commas_of_a_text_are_kept) {
  const Json out = Json::parse(run({"--json", "--no-special", "[MASK], the [SEP]"}).out);
  EXPECT_EQ(out.at("text").as_string(), "[MASK], the [SEP]");
  EXPECT_EQ(out.at("ids").at(std::size_t{0}).as_int(), 4);
  const Json plain = Json::parse(run({"--json", "--no-special", "--plain", "[MASK]"}).out);
  EXPECT_GT(plain.at("ids").size(), 1u);
  EXPECT_EQ(Json::parse(run({"--json", "--", "--decode"}).out).at("text").as_string(), "--decode");
}

TEST_F(Tokenize, bad_input_is_named) {
  const Finished bytes = run({"-"}, "fine\nbad \xFF\n");
  EXPECT_EQ(bytes.status, 1);
  EXPECT_NE(bytes.err.find("stdin:2: expected UTF-8, got an invalid byte at position 4"),
            std::string::npos)
      << bytes.err;
  const Finished id = run({"--decode", "99999"});
  EXPECT_EQ(id.status, 2);
  EXPECT_NE(id.err.find("got 99999"), std::string::npos) << id.err;
  EXPECT_EQ(run({"--decode", "1 x"}).status, 2);
  EXPECT_EQ(run({"--no-such-flag", "x"}).status, 2);
  EXPECT_EQ(run_qkv({"tokenize", (folder_ / "absent").string(), "x"}).status, 1);
}

}  // namespace
