#include <cmath>
#include <cstring>

#include <gtest/gtest.h>

#include "base/file.h"
#include "io/weight_files.h"
#include "support/files.h"

namespace {
using namespace qkv;
using qkv::io::WeightFiles;
using qkv::testing::TempFolder;

// Width 4, hidden 6, 2 layers, 2 heads, 1 key/value head, vocabulary 3, length 5; weights 0, 1, ...
std::string file_of(std::vector<std::int32_t> header, std::int64_t floats) {
  std::string bytes(reinterpret_cast<const char*>(header.data()), header.size() * 4);
  for (std::int64_t i = 0; i < floats; ++i) {
    const auto value = static_cast<float>(i);
    bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  return bytes;
}
const std::vector<std::int32_t> kHeader = {4, 6, 2, 2, 1, 3, 5};
// Embedding, norms, q, k, v, o, norms, gate, down, up, norm, rotary table.
constexpr std::int64_t kFloats =
    12 + 8 + 2 * (16 + 8 + 8 + 16) + 8 + 2 * (24 + 24 + 24) + 4 + 5 * 2;

std::string refusal(const std::string& bytes) {
  const TempFolder folder;
  try {
    WeightFiles::open(folder.write("m.bin", bytes));
  } catch (const ModelError& error) {
    return error.what();
  } catch (const UnsupportedError& error) {
    return error.what();
  }
  return "";
}

TEST(Llama2c, arrays_in_their_order) {
  const TempFolder folder;
  const WeightFiles files = WeightFiles::open(folder.write("m.bin", file_of(kHeader, kFloats)));
  EXPECT_EQ(files.format(), io::WeightFormat::kLlama2c);
  EXPECT_EQ(files.tensor("model.embed_tokens.weight").data<float>()[11], 11.0F);
  EXPECT_EQ(files.tensor("model.layers.1.input_layernorm.weight").data<float>()[0], 16.0F);
  // Query of layer 0 begins at 20; heads of 2: one pair each, whose order is the same in both.
  EXPECT_EQ(files.tensor("model.layers.0.self_attn.q_proj.weight").data<float>()[5], 25.0F);
  EXPECT_EQ(files.shape("model.layers.1.self_attn.k_proj.weight"), (Shape{2, 4}));
  EXPECT_EQ(files.shape("model.layers.1.mlp.down_proj.weight"), (Shape{4, 6}));
  EXPECT_EQ(files.tensor("model.norm.weight").data<float>()[3],
            static_cast<float>(kFloats - 10 - 1));
  EXPECT_FALSE(files.contains("lm_head.weight"));
  EXPECT_TRUE(files.config().at("tie_word_embeddings").as_bool());
  EXPECT_EQ(files.config().at("max_position_embeddings").as_int(), 5);
}

TEST(Llama2c, a_negative_vocabulary_has_its_own_output) {
  const TempFolder folder;
  std::vector<std::int32_t> header = kHeader;
  header[5] = -3;
  const WeightFiles files = WeightFiles::open(folder.write("m.bin", file_of(header, kFloats + 12)));
  EXPECT_EQ(files.tensor("lm_head.weight").data<float>()[0], static_cast<float>(kFloats));
  EXPECT_FALSE(files.config().at("tie_word_embeddings").as_bool());
}

TEST(Llama2c, what_does_not_add_up_is_refused) {
  EXPECT_EQ(refusal(file_of(kHeader, kFloats)), "");
  EXPECT_NE(refusal(file_of(kHeader, kFloats - 1)), "");
  EXPECT_NE(refusal(file_of(kHeader, kFloats + 1)).find("4 bytes more"), std::string::npos);
  EXPECT_NE(refusal(""), "");
  for (std::size_t i = 0; i < kHeader.size(); ++i) {
    for (const std::int32_t value : {0, INT32_MAX, INT32_MIN, 1 << 24, 3}) {
      std::vector<std::int32_t> header = kHeader;
      if (header[i] == value) continue;
      header[i] = value;
      EXPECT_NE(refusal(file_of(header, kFloats)), "") << i << " " << value;
    }
  }
  EXPECT_NE(refusal(file_of({0x616b3432, 1, 4, 6, 2, 2, 1}, 100)).find("version 0"),
            std::string::npos);
}

TEST(Llama2c, the_shared_model_of_stories) {
  QKV_SHARED_OR_SKIP(path, "data/models/stories260K/stories260K.bin");
  const WeightFiles files = WeightFiles::open(path);
  EXPECT_EQ(files.config().at("hidden_size").as_int(), 64);
  EXPECT_EQ(files.config().at("vocab_size").as_int(), 512);
  EXPECT_EQ(files.names().size(), 2u + 9 * 5);
  for (const std::string& name : files.names()) {
    const Tensor tensor = files.tensor(name);
    for (std::int64_t i = 0; i < tensor.numel(); ++i)
      ASSERT_TRUE(std::isfinite(tensor.data<float>()[i])) << name;
  }
}

}  // namespace
