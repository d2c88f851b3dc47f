// qkv inspect as a user sees it.
#include <cstring>
#include <filesystem>
#include <string>

#include <gtest/gtest.h>

#include "qkv/tokenizer.h"

#include "base/file.h"
#include "base/json.h"
#include "models/encoder_classifier.h"
#include "support/files.h"
#include "support/process.h"
#include "support/strings.h"

using namespace qkv;
using namespace qkv::testing;

namespace {

// A model folder with a space and Chinese in its name.
std::filesystem::path make_model(const TempFolder& folder) {
  std::filesystem::path path = folder / "my 模型";
  EncoderConfig c;
  c.d_model = 16;
  c.num_layers = 2;
  c.num_heads = 2;
  c.d_ff = 16;
  c.max_positions = 32;
  c.vocab_size = 60;
  c.labels = {"card", "order"};
  EncoderClassifier(c, 1).save(path);
  const std::vector<std::string> texts{"where is my card", "<script>alert(1)</script>",
                                       "什么时候到"};
  Tokenizer::train(texts, {.kind = TokenizerKind::kChar, .vocab_size = 60, .min_frequency = 1})
      .save(path);
  return path;
}

}  // namespace

TEST(InspectVerb, json_rows_sum_to_one) {
  const TempFolder folder;
  const Finished run = run_qkv({"inspect", make_model(folder).string(), "什么时候到", "--json"});
  ASSERT_EQ(run.status, 0) << run.err;
  const Json json = Json::parse(run.out);
  EXPECT_EQ(json.at("layers").as_int(), 2);
  EXPECT_EQ(json.at("heads").as_int(), 2);
  for (const Json& layer : json.at("attention").as_array()) {
    for (const Json& head : layer.as_array()) {
      for (const Json& row : head.as_array()) {
        double sum = 0;
        for (const Json& weight : row.as_array()) sum += weight.as_double();
        EXPECT_NEAR(sum, 1, 1e-5);
      }
    }
  }
}

TEST(InspectVerb, page_of_hostile_text_holds_no_script_of_it) {
  const TempFolder folder;
  const auto page = folder / "a page.html";
  const Finished run = run_qkv(
      {"inspect", make_model(folder).string(), "<script>alert(1)</script>", "-o", page.string()});
  ASSERT_EQ(run.status, 0) << run.err;
  EXPECT_TRUE(has(run.err, "wrote")) << run.err;
  const std::string html = read_file(page);
  EXPECT_FALSE(has(html, "<script>alert(1)"));
  EXPECT_TRUE(has(html, "\\u003cscript>alert(1)"));
}

TEST(InspectVerb, tensors_stats_positions_and_graph) {
  const TempFolder folder;
  const std::string model = make_model(folder).string();
  const Finished slice =
      run_qkv({"inspect", model, "--tensor", "classifier.weight[0,:5]", "--json"});
  ASSERT_EQ(slice.status, 0) << slice.err;
  EXPECT_EQ(Json::parse(slice.out).at("values").size(), 5u);
  const Finished activation = run_qkv({"inspect", model, "my card", "--tensor", "logits"});
  EXPECT_EQ(activation.status, 0) << activation.err;
  EXPECT_TRUE(has(activation.out, "[1, 2]")) << activation.out;
  const Finished stats = run_qkv({"inspect", model, "--stats"});
  EXPECT_TRUE(has(stats.out, "encoder.layers.1.feed_forward.up.weight")) << stats.out;
  EXPECT_TRUE(has(run_qkv({"inspect", model, "--positions"}).out, "row 10 - row 5"));
  EXPECT_TRUE(has(run_qkv({"inspect", model, "my card", "--graph"}).out,
                  "encoder.layers.0.attention.weights"));
}

TEST(InspectVerb, what_cannot_be_answered_is_refused) {
  const TempFolder folder;
  const std::string model = make_model(folder).string();
  EXPECT_EQ(run_qkv({"inspect", model}).status, 2);
  EXPECT_EQ(run_qkv({"inspect", model, "--graph"}).status, 2);
  EXPECT_EQ(run_qkv({"inspect", model, ""}).status, 1);
  EXPECT_EQ(run_qkv({"inspect", model, "\xff"}).status, 1);
  EXPECT_EQ(run_qkv({"inspect", model, std::string(40, 'a')}).status, 1);
  EXPECT_EQ(run_qkv({"inspect", model, std::string(40, 'a'), "--truncate", "--json"}).status, 0);
  const Finished unknown = run_qkv({"inspect", model, "--tensor", "clasifier.weight"});
  EXPECT_EQ(unknown.status, 2);
  EXPECT_TRUE(has(unknown.err, "did you mean classifier.weight?")) << unknown.err;
  EXPECT_EQ(run_qkv({"inspect", model, "--tensor", "classifier.weight[9]"}).status, 2);
  EXPECT_EQ(run_qkv({"inspect", (folder / "none").string(), "x"}).status, 2);
}

TEST(InspectVerb, weights_that_are_not_numbers_are_refused_by_name) {
  const TempFolder folder;
  const std::filesystem::path model = make_model(folder);
  std::string bytes = read_file(model / "model.safetensors");
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(bytes.data() + bytes.size() - sizeof(nan), &nan, sizeof(nan));
  write_file_atomic(model / "model.safetensors", bytes);
  const Finished run = run_qkv({"inspect", model.string(), "my card", "--json"});
  EXPECT_EQ(run.status, 1);
  EXPECT_EQ(run.out, "");
  EXPECT_TRUE(has(run.err, "classifier.bias")) << run.err;
}
