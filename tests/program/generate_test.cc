// qkv generate and qkv score, as a user sees them, on a tiny model of random weights.
#include <cmath>
#include <filesystem>
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

class Generate : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"config.json", "generation_config.json", "model.safetensors"})
      std::filesystem::copy_file(
          std::filesystem::path(QKV_SOURCE_DIR) / "tests/golden/decoders/llama" / name,
          folder_ / name);
    TokenizerOptions options;
    options.kind = TokenizerKind::kChar;
    options.vocab_size = 58;  // three fewer than the model's last layer
    options.min_frequency = 1;
    options.cls_sep = false;
    const std::vector<std::string> texts = {"abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ",
                                            "日本"};
    Tokenizer::train(texts, options).save(folder_.path());
  }
  Finished run(std::vector<std::string> arguments, const std::string& input = "") const {
    arguments.insert(arguments.begin() + 1, folder_.path().string());
    return run_qkv(arguments, {.input = input, .environment = {}, .folder = ""});
  }
  Json json(const std::vector<std::string>& arguments) const {
    const Finished done = run(arguments);
    EXPECT_EQ(done.status, 0) << done.err;
    return Json::parse(done.out.substr(0, done.out.find('\n')));
  }
  qkv::testing::TempFolder folder_;
};

TEST_F(Generate, json_holds_text_tokens_and_reason) {
  const Json out = json({"generate", "--prompt", "the cat", "--max-new-tokens", "5", "--ignore-end",
                         "--json", "--logprobs"});
  EXPECT_EQ(out.at("prompt").as_string(), "the cat");
  EXPECT_EQ(out.at("tokens").size(), 5U);
  EXPECT_EQ(out.at("logprobs").size(), 5U);
  EXPECT_EQ(out.at("finish_reason").as_string(), "length");
  std::string pieces;
  for (const Json& token : out.at("tokens").as_array()) {
    EXPECT_LT(token.at("id").as_int(), 58);
    EXPECT_LE(token.at("logprob").as_double(), 0);
    pieces += token.at("piece").as_string();
  }
  EXPECT_FALSE(pieces.empty());
}

TEST_F(Generate, streams_the_same_text) {
  const std::vector<std::string> asked{"generate",         "--prompt", "the dog",
                                       "--max-new-tokens", "9",        "--ignore-end"};
  std::vector<std::string> as_json = asked;
  as_json.emplace_back("--json");
  const Finished plain = run(asked);
  EXPECT_EQ(plain.status, 0) << plain.err;
  EXPECT_EQ(plain.out, json(as_json).at("text").as_string() + "\n");
}

TEST_F(Generate, lines_of_stdin_equal_single_prompts) {
  const Finished done = run({"generate", "-", "--json", "--max-new-tokens", "6"}, "abc\nxyz\na\n");
  ASSERT_EQ(done.status, 0) << done.err;
  std::size_t at = 0;
  for (const char* prompt : {"abc", "xyz", "a"}) {
    const std::size_t end = done.out.find('\n', at);
    ASSERT_NE(end, std::string::npos);
    const Json line = Json::parse(done.out.substr(at, end - at));
    const Json alone = json({"generate", "--prompt", prompt, "--json", "--max-new-tokens", "6"});
    EXPECT_EQ(line, alone);
    at = end + 1;
  }
}

TEST_F(Generate, seeds_and_beams) {
  const auto text = [&](const std::string& seed) {
    return json({"generate", "--prompt", "ab", "--temperature", "1.5", "--max-new-tokens", "20",
                 "--ignore-end", "--json", "--seed", seed})
        .at("text");
  };
  EXPECT_EQ(text("1"), text("1"));
  EXPECT_NE(text("1"), text("2"));
  const Json beams =
      json({"generate", "--prompt", "ab", "--num-beams", "3", "--max-new-tokens", "6", "--json"});
  EXPECT_LT(beams.at("score").as_double(), 0);
}

TEST_F(Generate, refusals_say_what_to_do) {
  const Finished both = run({"generate", "--prompt", "a", "--num-beams", "2", "--top-k", "3"});
  EXPECT_EQ(both.status, 2);
  EXPECT_NE(both.err.find("--num-beams"), std::string::npos) << both.err;
  EXPECT_EQ(run({"generate", "--prompt", "a", "--top-p", "2"}).status, 2);
  EXPECT_EQ(run({"generate", "--prompt", "a", "--logit-bias", "x"}).status, 2);
  const Finished cold = run({"generate", "--prompt", "a", "--temperature", "-1"});
  EXPECT_EQ(cold.status, 2);
  EXPECT_NE(cold.err.find("expected temperature >= 0, got -1"), std::string::npos) << cold.err;
  const Finished longer = run({"generate", "--prompt", std::string(48, 'a')});
  EXPECT_EQ(longer.status, 1);
  EXPECT_NE(longer.err.find("at most 48 together"), std::string::npos) << longer.err;
}

TEST_F(Generate, score_has_a_logprob_for_all_but_the_first) {
  const Json out = json({"score", "the cat", "--json"});
  EXPECT_TRUE(out.at("logprobs").at(0).is_null());
  double sum = 0;
  for (std::size_t i = 1; i < out.at("logprobs").size(); ++i)
    sum += out.at("logprobs").at(i).as_double();
  EXPECT_NEAR(out.at("loglikelihood").as_double(), sum, 1e-9);
  EXPECT_NEAR(out.at("perplexity").as_double(),
              std::exp(-sum / static_cast<double>(out.at("logprobs").size() - 1)), 1e-6);
  const Json part = json({"score", " cat", "--context", "the", "--json"});
  EXPECT_EQ(part.at("tokens").size(), 4U);
  EXPECT_EQ(run({"score", "a"}).status, 1);  // nothing stands before it
}

}  // namespace
