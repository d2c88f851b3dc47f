// Model folders: every mutant is found by its own rule first; the whole folder raises nothing.
#include "doctor/mutants/folder.h"

#include <cstdlib>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "qkv/doctor.h"

#include "base/file.h"
#include "io/safetensors.h"
#include "support/files.h"
#include "support/tensors.h"

using namespace qkv;
using namespace qkv::testing;

namespace {
class FolderGallery : public ::testing::TestWithParam<FolderMutant> {};
}  // namespace

TEST_P(FolderGallery, is_found_by_its_own_rule) {
  const TempFolder folder;
  write_model(folder.path(), false);
  GetParam().damage(folder.path());
  const doctor::Report report = doctor::check_path(folder.path());
  if (const char* out = std::getenv("QKV_GALLERY_OUT"))
    write_file_atomic(fmt::format("{}/{}.json", out, GetParam().name), report.to_json());
  ASSERT_FALSE(report.ok()) << report.str();
  for (const doctor::Finding& f : report.errors()) {
    if (f.follows.empty()) {
      EXPECT_EQ(f.id, GetParam().id) << report.str();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Folders, FolderGallery, ::testing::ValuesIn(folder_mutants()),
                         [](const auto& entry) { return std::string(entry.param.name); });

TEST(FolderCheck, whole_folders_raise_nothing) {
  for (const bool bert : {false, true}) {
    const TempFolder folder;
    write_model(folder.path(), bert);
    const doctor::Report report = doctor::check_path(folder.path());
    EXPECT_TRUE(report.findings.empty()) << report.str();
  }
}

TEST(FolderCheck, a_missing_tokenizer_is_a_warning) {
  const TempFolder folder;
  write_model(folder.path(), false);
  std::filesystem::remove(folder / "tokenizer.json");
  const doctor::Report report = doctor::check_path(folder.path());
  EXPECT_TRUE(report.ok());
  ASSERT_EQ(report.findings.size(), 1u) << report.str();
  EXPECT_EQ(report.findings[0].id, "file-missing");
}

TEST(FolderCheck, nothing_at_the_path_is_refused) {
  EXPECT_THROW(doctor::check_path("/no/such/folder"), ArgumentError);
}

// A decoder of Llama's shape with grouped heads: the engine does not run it, its files are judged.
TEST(FolderCheck, shapes_of_other_families_follow_from_their_configuration) {
  const TempFolder folder;
  folder.write("config.json", R"({"model_type": "llama", "hidden_size": 12, "vocab_size": 20,
    "num_hidden_layers": 1, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 8,
    "intermediate_size": 10, "max_position_embeddings": 64})");
  const std::string layer = "model.layers.0.";
  const auto save = [&](const Shape& keys) {
    io::save_safetensors(folder / "model.safetensors",
                         {{"model.embed_tokens.weight", random_tensor({20, 12}, 1)},
                          {layer + "self_attn.q_proj.weight", random_tensor({24, 12}, 2)},
                          {layer + "self_attn.k_proj.weight", random_tensor(keys, 3)},
                          {layer + "self_attn.o_proj.weight", random_tensor({12, 24}, 4)},
                          {layer + "mlp.up_proj.weight", random_tensor({10, 12}, 5)}});
    return doctor::check_path(folder.path());
  };
  const doctor::Report right = save({8, 12});
  EXPECT_TRUE(right.ok()) << right.str();
  EXPECT_FALSE(right.skipped.empty());
  const doctor::Report wrong = save({24, 12});
  ASSERT_FALSE(wrong.ok());
  EXPECT_EQ(wrong.errors()[0].id, "weights-shape") << wrong.str();
}
