// qkv doctor as a user sees it.
#include <filesystem>
#include <string>

#include <gtest/gtest.h>

#include "qkv/tokenizer.h"

#include "base/file.h"
#include "base/json.h"
#include "models/encoder_classifier.h"
#include "support/files.h"
#include "support/process.h"

using namespace qkv;
using namespace qkv::testing;

namespace {

std::string make_model(const TempFolder& folder) {
  EncoderConfig c;
  c.d_model = 16;
  c.num_layers = 1;
  c.num_heads = 2;
  c.d_ff = 16;
  c.max_positions = 16;
  c.vocab_size = 40;
  c.labels = {"card", "order"};
  EncoderClassifier(c, 1).save(folder.path());
  const std::vector<std::string> texts{"where is my card"};
  Tokenizer::train(texts, {.kind = TokenizerKind::kChar, .vocab_size = 40, .min_frequency = 1})
      .save(folder.path());
  return folder.path().string();
}

}  // namespace

TEST(DoctorVerb, a_healthy_model_ends_with_0) {
  const TempFolder folder;
  const Finished run = run_qkv({"doctor", make_model(folder), "--json"});
  ASSERT_EQ(run.status, 0) << run.out << run.err;
  const Json json = Json::parse(run.out);
  EXPECT_TRUE(json.at("ok").as_bool());
  EXPECT_EQ(json.at("findings").size(), 0u);
}

TEST(DoctorVerb, an_error_ends_with_3_and_says_all) {
  const TempFolder folder;
  const std::string model = make_model(folder);
  const auto weights = folder / "model.safetensors";
  std::filesystem::resize_file(weights, std::filesystem::file_size(weights) - 8);
  const Finished run = run_qkv({"doctor", model, "--json"});
  EXPECT_EQ(run.status, 3) << run.err;
  const Json json = Json::parse(run.out);
  const Json& finding = json.at("findings").at(std::size_t{0});
  EXPECT_EQ(finding.at("id").as_string(), "file-damaged");
  EXPECT_EQ(finding.at("severity").as_string(), "error");
  EXPECT_EQ(finding.at("where").as_string(), "model.safetensors");
  EXPECT_FALSE(finding.at("why").as_string().empty());
  EXPECT_FALSE(finding.at("remedy").as_string().empty());
  EXPECT_GT(finding.at("evidence").size(), 0u);
  const Finished text = run_qkv({"doctor", model});
  EXPECT_EQ(text.status, 3);
  EXPECT_NE(text.out.find("docs/doctor/file-damaged.md"), std::string::npos) << text.out;
}

TEST(DoctorVerb, warnings_end_with_0) {
  const TempFolder folder;
  const std::string model = make_model(folder);
  std::filesystem::remove(folder / "tokenizer.json");
  const Finished run = run_qkv({"doctor", model});
  EXPECT_EQ(run.status, 0) << run.out;
  EXPECT_NE(run.out.find("warning"), std::string::npos) << run.out;
}

TEST(DoctorVerb, a_symptom_leads_to_causes) {
  const Finished run = run_qkv({"doctor", "--symptom", "loss nan", "--json"});
  ASSERT_EQ(run.status, 0) << run.err;
  const Json json = Json::parse(run.out.substr(0, run.out.find('\n')));
  EXPECT_EQ(json.at("symptom").as_string(), "the loss is NaN or infinite");
  const Json& cause = json.at("causes").at(std::size_t{0});
  EXPECT_EQ(cause.at("id").as_string(), "non-finite");
  for (const char* key : {"cause", "command", "remedy", "doc"})
    EXPECT_FALSE(cause.at(key).as_string().empty()) << key;
  const Finished text = run_qkv({"doctor", "--symptom", "loss nan"});
  EXPECT_NE(text.out.find("[non-finite]"), std::string::npos) << text.out;
  const Finished unknown = run_qkv({"doctor", "--symptom", "xyzzy"});
  EXPECT_EQ(unknown.status, 2);
  EXPECT_NE(unknown.err.find("the loss jumps"), std::string::npos) << unknown.err;
}

TEST(DoctorVerb, machine_names_every_kernel) {
  const Finished run =
      run_qkv({"doctor", "machine", "--json"}, {.environment = {"QKV_MAX_ISA=generic"}});
  ASSERT_EQ(run.status, 0) << run.out << run.err;
  const Json json = Json::parse(run.out);
  EXPECT_GT(json.at("kernels").size(), 20u);
  EXPECT_EQ(json.at("kernels").at(std::size_t{0}).at("implementation").as_string(), "generic");
  EXPECT_GT(json.at("skipped").size(), 0u);
}

TEST(DoctorVerb, bad_targets_are_refused) {
  EXPECT_EQ(run_qkv({"doctor"}).status, 2);
  EXPECT_EQ(run_qkv({"doctor", "/no/such/model"}).status, 2);
  const TempFolder folder;
  EXPECT_EQ(run_qkv({"doctor", folder.write("notes.txt", "x").string()}).status, 2);
}

TEST(DoctorVerb, rules_are_listed) {
  const Finished run = run_qkv({"doctor", "--rules"});
  EXPECT_EQ(run.status, 0);
  EXPECT_NE(run.out.find("future-leak"), std::string::npos);
}
