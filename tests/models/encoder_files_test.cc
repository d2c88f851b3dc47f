// Folders: bytes, names, and files that do not fit.
#include <limits>

#include <gtest/gtest.h>

#include "base/file.h"
#include "base/function_ref.h"
#include "io/safetensors.h"
#include "models/encoder_support.h"
#include "support/files.h"
#include "support/tensors.h"

using namespace qkv;
using namespace qkv::testing;

namespace {

Tensor logits(const EncoderClassifier& model, const TinyBatch& batch) {
  Context context;
  context.layout = &batch.layout;
  return model.forward(context, batch.ids).value();
}

std::vector<EncoderConfig> forms() {
  EncoderConfig sandwich = tiny_config();
  sandwich.norm_placement = NormPlacement::kSandwich;
  sandwich.positions = PositionKind::kSinusoidal;
  sandwich.activation = ops::Activation::kGeglu;
  EncoderConfig window = tiny_modern();
  window.attention = AttentionKind::kWindow;
  window.window = 3;
  window.pooling = ops::Pooling::kMax;
  EncoderConfig bare = tiny_config();
  bare.norm = NormChoice::kNone;
  bare.d_ff = 0;
  bare.positions = PositionKind::kNone;
  return {tiny_config(), tiny_bert(), tiny_modern(), sandwich, window, bare};
}

using TensorList = std::vector<std::pair<std::string, Tensor>>;
TensorList tensors_of(const std::filesystem::path& folder) {
  const io::SafetensorsFile file = io::SafetensorsFile::open(folder / "model.safetensors");
  TensorList list;
  for (const std::string& name : file.names()) list.emplace_back(name, file.tensor(name).clone());
  return list;
}

// Saves a model, lets `change` alter its tensors, and returns the message of the ModelError that
// loading gives.
std::string load_error(const EncoderConfig& config, FunctionRef<void(TensorList&)> change) {
  const TempFolder folder;
  EncoderClassifier(config, 3).save(folder.path());
  TensorList tensors = tensors_of(folder.path());
  change(tensors);
  io::save_safetensors(folder.path() / "model.safetensors", tensors);
  try {
    EncoderClassifier::load(folder.path());
  } catch (const ModelError& error) {
    return error.what();
  }
  return "";
}

std::string config_error(FunctionRef<void(Json&)> change,
                         const EncoderConfig& config = tiny_config()) {
  Json json = config.to_json();
  change(json);
  try {
    EncoderConfig::from_json(json);
  } catch (const ModelError& error) {
    return error.what();
  }
  return "";
}

void erase_key(Json& json, const std::string& key) {
  std::erase_if(json.as_object(), [&](const Json::Member& member) { return member.first == key; });
}

}  // namespace

TEST(EncoderFiles, load_gives_the_same_bits_and_save_the_same_bytes) {
  for (const EncoderConfig& config : forms()) {
    const TempFolder folder;
    const EncoderClassifier model(config, 3);
    model.save(folder / "first");
    const EncoderClassifier loaded = EncoderClassifier::load(folder / "first");
    const TinyBatch batch = tiny_batch({5, 2, 9}, 19, 5);
    EXPECT_TRUE(same_bits(logits(loaded, batch), logits(model, batch)));
    loaded.save(folder / "second");
    for (const char* name : {"config.json", "model.safetensors"}) {
      EXPECT_EQ(read_file(folder / "first" / name), read_file(folder / "second" / name)) << name;
    }
    EXPECT_EQ(loaded.config().labels, config.labels);
    EXPECT_EQ(loaded.config().to_json(), config.to_json());
  }
}

TEST(EncoderFiles, a_bert_like_model_carries_berts_names) {
  const TempFolder folder;
  EncoderClassifier(tiny_bert(), 3).save(folder.path());
  const Json config = Json::parse(read_file(folder / "config.json"));
  EXPECT_EQ(config.at("model_type").as_string(), "bert");
  EXPECT_EQ(config.at("architectures").at(0).as_string(), "BertForSequenceClassification");
  EXPECT_EQ(config.at("id2label").at("2").as_string(), "c");
  EXPECT_EQ(config.at("label2id").at("c").as_int(), 2);
  const io::SafetensorsFile file = io::SafetensorsFile::open(folder / "model.safetensors");
  EXPECT_EQ(file.tensor("bert.encoder.layer.1.attention.self.key.weight").shape(), (Shape{16, 16}));
  EXPECT_EQ(file.tensor("bert.encoder.layer.0.intermediate.dense.bias").shape(), (Shape{24}));
  EXPECT_EQ(file.tensor("bert.pooler.dense.weight").shape(), (Shape{16, 16}));
  EXPECT_EQ(file.metadata().at("format"), "pt");
}

TEST(EncoderFiles, other_forms_carry_their_own_type) {
  for (const EncoderConfig& config : forms()) {
    if (config.is_bert()) continue;
    EXPECT_EQ(config.to_json().at("model_type").as_string(), "qkv");
  }
  EncoderConfig mean = tiny_bert();
  mean.pooling = ops::Pooling::kMean;
  EXPECT_EQ(mean.to_json().at("model_type").as_string(), "qkv");
}

TEST(EncoderFiles, token_types_of_other_files_are_added_to_the_positions) {
  const TempFolder folder;
  const EncoderClassifier model(tiny_bert(), 3);
  model.save(folder.path());
  TensorList tensors = tensors_of(folder.path());
  for (auto& [name, tensor] : tensors) {
    if (name.ends_with("token_type_embeddings.weight"))
      tensor = random_tensor({2, 16}, 5, DType::kFloat32);
  }
  tensors.emplace_back("bert.embeddings.position_ids", Tensor::zeros({1, 12}, DType::kInt64));
  io::save_safetensors(folder / "model.safetensors", tensors);
  const EncoderClassifier loaded = EncoderClassifier::load(folder.path());
  const Tensor before = model.module().find("embeddings.position.weight")->var.value();
  const Tensor after = loaded.module().find("embeddings.position.weight")->var.value();
  const std::vector<double> row =
      values_of(random_tensor({2, 16}, 5, DType::kFloat32).narrow(0, 0, 1));
  for (std::int64_t i = 0; i < before.numel(); ++i) {
    EXPECT_FLOAT_EQ(
        after.data<float>()[i],
        before.data<float>()[i] + static_cast<float>(row[static_cast<std::size_t>(i % 16)]));
  }
}

TEST(EncoderFiles, half_precision_files_are_widened) {
  const TempFolder folder;
  const EncoderClassifier model(tiny_config(), 3);
  model.save(folder.path());
  TensorList tensors = tensors_of(folder.path());
  for (auto& [name, tensor] : tensors) tensor = tensor.to(DType::kBFloat16);
  io::save_safetensors(folder / "model.safetensors", tensors);
  const EncoderClassifier loaded = EncoderClassifier::load(folder.path());
  const TinyBatch batch = tiny_batch({5, 2, 9}, 19, 5);
  EXPECT_LE(relative_difference(logits(loaded, batch), logits(model, batch)), 0.05);
}

TEST(EncoderFiles, b61_a_missing_or_surplus_tensor_is_an_error_that_names_it) {
  for (const EncoderConfig& config : {tiny_config(), tiny_bert()}) {
    const std::string missing = load_error(config, [](TensorList& t) {
      std::erase_if(t, [](auto& p) { return p.first == "classifier.bias"; });
    });
    EXPECT_NE(missing.find("classifier.bias"), std::string::npos) << missing;
    const std::string surplus = load_error(
        config, [](TensorList& t) { t.emplace_back("extra.weight", Tensor::zeros({2})); });
    EXPECT_NE(surplus.find("extra.weight"), std::string::npos) << surplus;
  }
  const std::string types = load_error(tiny_bert(), [](TensorList& t) {
    std::erase_if(t, [](auto& p) { return p.first.find("token_type") != std::string::npos; });
  });
  EXPECT_NE(types.find("token_type"), std::string::npos) << types;
}

TEST(EncoderFiles, a_tensor_of_the_wrong_shape_or_type_is_an_error_that_names_it) {
  const auto replaced = [](const Tensor& by) {
    return load_error(tiny_config(), [&](TensorList& t) {
      for (auto& [name, tensor] : t) {
        if (name == "encoder.layers.1.attention.out.weight") tensor = by;
      }
    });
  };
  const std::string shape = replaced(Tensor::zeros({16, 17}));
  EXPECT_NE(shape.find("encoder.layers.1.attention.out.weight: expected shape [16, 16]"),
            std::string::npos)
      << shape;
  const std::string type = replaced(Tensor::zeros({16, 16}, DType::kInt32));
  EXPECT_NE(type.find("int32"), std::string::npos) << type;
}

TEST(EncoderFiles, non_finite_weights_are_an_error_that_names_the_tensor) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (const EncoderConfig& config : {tiny_config(), tiny_bert()}) {
      std::string name;
      const std::string message = load_error(config, [&](TensorList& t) {
        name = t.at(5).first;
        t.at(5).second.data<float>()[3] = bad;
      });
      EXPECT_NE(message.find(name + ": expected finite numbers"), std::string::npos) << message;
      EXPECT_NE(message.find("element 3"), std::string::npos) << message;
    }
  }
}

TEST(EncoderFiles, a_configuration_larger_than_the_file_is_refused_before_memory_is_asked_for) {
  for (const char* key : {"d_model", "vocab_size", "num_layers"}) {
    const TempFolder folder;
    EncoderClassifier(tiny_config(), 3).save(folder.path());
    Json json = Json::parse(read_file(folder / "config.json"));
    json[key] = std::int64_t{1} << 24;
    folder.write("config.json", json.dump());
    EXPECT_THROW(EncoderClassifier::load(folder.path()), ModelError) << key;
  }
}

TEST(EncoderFiles, a_folder_without_files_or_with_broken_ones_is_an_error) {
  const TempFolder folder;
  EXPECT_THROW(EncoderClassifier::load(folder.path()), Error);
  folder.write("config.json", "{\"model_type\": ");
  EXPECT_THROW(EncoderClassifier::load(folder.path()), ModelError);
  folder.write("config.json", "[]");
  EXPECT_THROW(EncoderClassifier::load(folder.path()), ModelError);
  EncoderClassifier(tiny_config(), 3).save(folder.path());
  const std::string bytes = read_file(folder / "model.safetensors");
  folder.write("model.safetensors", bytes.substr(0, bytes.size() - 1));
  EXPECT_THROW(EncoderClassifier::load(folder.path()), ModelError);
}

TEST(EncoderConfigJson, names_the_key_that_is_wrong) {
  EXPECT_NE(config_error([](Json& j) { j["model_type"] = "gpt2"; }).find("gpt2"),
            std::string::npos);
  EXPECT_NE(config_error([](Json& j) { erase_key(j, "d_ff"); }).find("\"d_ff\""),
            std::string::npos);
  EXPECT_NE(config_error([](Json& j) {
              j["num_heads"] = "8";
            }).find("num_heads: expected an integer, got \"8\""),
            std::string::npos);
  EXPECT_NE(config_error([](Json& j) { j["num_heads"] = 3; }).find("multiple of num_heads 3"),
            std::string::npos);
  EXPECT_NE(config_error([](Json& j) { j["norm"] = "batch"; }).find("norm: "), std::string::npos);
  EXPECT_NE(config_error([](Json& j) { j["format"] = 2; }).find("format"), std::string::npos);
  EXPECT_NE(config_error([](Json& j) { j["bias"] = 1; }).find("bias: expected true or false"),
            std::string::npos);
  EXPECT_NE(config_error([](Json& j) { erase_key(j, "id2label"); }).find("id2label"),
            std::string::npos);
  EXPECT_NE(config_error([](Json& j) { j["id2label"] = Json::object(); }).find("id2label"),
            std::string::npos);
  const auto bert_error = [](FunctionRef<void(Json&)> change) {
    return config_error(change, tiny_bert());
  };
  EXPECT_NE(bert_error([](Json& j) { j["hidden_act"] = "mish"; }).find("hidden_act"),
            std::string::npos);
  EXPECT_NE(bert_error([](Json& j) {
              j["position_embedding_type"] = "relative_key";
            }).find("relative_key"),
            std::string::npos);
  EXPECT_NE(bert_error([](Json& j) { j["is_decoder"] = true; }).find("is_decoder"),
            std::string::npos);
}

TEST(EncoderConfig, lists_all_faults_at_once) {
  EncoderConfig c = tiny_config();
  EXPECT_TRUE(c.faults().empty());
  c.num_heads = 3;
  c.hidden_dropout = 1.5;
  c.vocab_size = 0;
  c.window = 4;
  c.labels = {"x", "x"};
  const std::vector<std::string> faults = c.faults();
  EXPECT_EQ(faults.size(), 5U);
  EXPECT_EQ(faults.at(0), "vocab_size: expected at least 1, got 0");
  EXPECT_THROW(EncoderClassifier(c, 1), ConfigError);
  EncoderConfig odd = tiny_modern();
  odd.d_model = 12;
  EXPECT_EQ(odd.faults().size(), 1U);
  odd.attention = AttentionKind::kWindow;
  EXPECT_EQ(odd.faults().size(), 2U);
  EncoderConfig nan = tiny_config();
  nan.norm_eps = nan.attention_dropout = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(nan.faults().size(), 2U);
}
