#include "models/convert.h"

#include <cstring>
#include <filesystem>
#include <stdexcept>

#include <gtest/gtest.h>

#include "qkv/tokenizer.h"

#include "base/file.h"
#include "io/safetensors.h"
#include "io/weight_files.h"
#include "support/files.h"

namespace {
using namespace qkv;
namespace fs = std::filesystem;
using qkv::testing::list_folder;
using qkv::testing::TempFolder;

// A folder with a float matrix, an integer vector, and files that are no weights.
void write_folder(const fs::path& folder, float largest) {
  fs::create_directories(folder / "1_Pooling");
  io::save_safetensors(folder / "model.safetensors",
                       {{"w", Tensor::from<float>({1.0F, 0.1F, -2.5F, largest}, {2, 2})},
                        {"ids", Tensor::from<std::int64_t>({1, 2}, {2})}});
  write_file_atomic(folder / "config.json", R"({"model_type":"bert"})");
  write_file_atomic(folder / "vocab.txt", "[PAD]\n");
  write_file_atomic(folder / "1_Pooling" / "config.json", "{}");
  write_file_atomic(folder / "pytorch_model.bin", "PK");
}

TEST(Convert, dtypes_of_a_folder) {
  const TempFolder folder;
  write_folder(folder / "in", 1000);
  const ConvertResult result =
      convert_model(folder / "in", folder / "out", {.dtype = DType::kBFloat16});
  EXPECT_EQ(result.tensors, 2);
  EXPECT_EQ(result.bytes, 4u * 2 + 2 * 8);
  EXPECT_EQ(
      list_folder(folder / "out"),
      (std::vector<std::string>{"1_Pooling", "config.json", "model.safetensors", "vocab.txt"}));
  const io::WeightFiles files = io::WeightFiles::open(folder / "out");
  EXPECT_EQ(files.config().at("torch_dtype").as_string(), "bfloat16");
  EXPECT_EQ(files.config().at("model_type").as_string(), "bert");
  EXPECT_EQ(files.tensor("w").to(DType::kFloat32).data<float>()[1], 0.10009765625F);
  EXPECT_EQ(files.tensor("ids").data<std::int64_t>()[1], 2);
  // Without a dtype the numbers stay as they are.
  convert_model(folder / "in", folder / "same");
  const io::WeightFiles same = io::WeightFiles::open(folder / "same");
  EXPECT_EQ(same.tensor("w").data<float>()[1], 0.1F);
  EXPECT_EQ(same.config().at("torch_dtype").as_string(), "float32");
}

TEST(Convert, what_float16_cannot_hold_is_refused_and_nothing_is_left) {
  const TempFolder folder;
  write_folder(folder / "in", 70000);
  EXPECT_THROW(convert_model(folder / "in", folder / "out", {.dtype = DType::kFloat16}),
               ModelError);
  EXPECT_EQ(list_folder(folder.path()), std::vector<std::string>{"in"});
}

TEST(Convert, b64_an_interrupted_conversion_leaves_nothing) {
  const TempFolder folder;
  write_folder(folder / "in", 1);
  ConvertOptions options;
  options.progress = [](std::int64_t done, std::int64_t) {
    if (done == 1) throw std::runtime_error("interrupted");
  };
  EXPECT_THROW(convert_model(folder / "in", folder / "out", options), std::runtime_error);
  EXPECT_EQ(list_folder(folder.path()), std::vector<std::string>{"in"});
}

TEST(Convert, a_folder_that_holds_something_is_not_touched) {
  const TempFolder folder;
  write_folder(folder / "in", 1);
  fs::create_directory(folder / "out");
  write_file_atomic(folder / "out" / "mine", "x");
  EXPECT_THROW(convert_model(folder / "in", folder / "out"), ArgumentError);
  EXPECT_THROW(convert_model(folder / "in", folder / "in"), ArgumentError);
  fs::remove(folder / "out" / "mine");
  convert_model(folder / "in", folder / "out");  // an empty one is fine
  EXPECT_TRUE(fs::exists(folder / "out" / "model.safetensors"));
}

TEST(Convert, the_shared_model_of_stories) {
  QKV_SHARED_OR_SKIP(path, "data/models/stories260K/stories260K.bin");
  const TempFolder folder;
  convert_model(path, folder / "out");
  const io::WeightFiles before = io::WeightFiles::open(path),
                        after = io::WeightFiles::open(folder / "out");
  EXPECT_EQ(after.config().at("torch_dtype").as_string(), "float32");
  ASSERT_EQ(before.names().size(), after.names().size());
  for (const std::string& name : before.names()) {
    const Tensor a = before.tensor(name), b = after.tensor(name);
    ASSERT_EQ(a.shape(), b.shape());
    EXPECT_EQ(std::memcmp(a.raw(), b.raw(), a.nbytes()), 0) << name;
  }
  const Tokenizer tokenizer = Tokenizer::load(folder / "out");
  EXPECT_EQ(tokenizer.vocab_size(), 512);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("Once upon a time").ids), "Once upon a time");
}

}  // namespace
