// Every encoder family against transformers: logits, loss and gradients of tiny random models
// (tools/make_family_goldens.py), and their files.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "autograd/functions.h"
#include "base/file.h"
#include "io/safetensors.h"
#include "models/checkpoint.h"
#include "models/families/weight_names.h"
#include "support/errors.h"
#include "support/files.h"
#include "support/tensors.h"

using namespace qkv;
using namespace qkv::testing;
namespace fs = std::filesystem;

namespace {

const fs::path kFolder = fs::path(QKV_SOURCE_DIR) / "tests" / "golden" / "families";

std::vector<std::int32_t> integers(const io::SafetensorsFile& file, const std::string& name) {
  std::vector<std::int32_t> values;
  for (const double v : values_of(file.tensor(name)))
    values.push_back(static_cast<std::int32_t>(v));
  return values;
}

// A golden model with its input.
struct Golden {
  explicit Golden(const std::string& name, const LoadOptions& options = {})
      : folder(kFolder / name),
        file(io::SafetensorsFile::open(folder / "golden.safetensors")),
        checkpoint(load_checkpoint(folder, options)),
        ids(integers(file, "ids")) {
    std::vector<std::int64_t> lengths;
    for (const std::int32_t n : integers(file, "lengths")) lengths.push_back(n);
    layout = RaggedLayout::from_lengths(lengths);
    if (file.contains("types")) types = integers(file, "types");
  }
  const Transformer& model() const { return checkpoint.model; }

  fs::path folder;
  io::SafetensorsFile file;
  Checkpoint checkpoint;
  std::vector<std::int32_t> ids, types;
  RaggedLayout layout;
};

class FamilyGolden : public ::testing::TestWithParam<std::string> {};

std::vector<std::string> golden_names(bool trunks) {
  std::vector<std::string> names;
  for (const std::string& name : list_folder(kFolder))
    if (name.ends_with("_trunk") == trunks) names.push_back(name);
  return names;
}

TEST_P(FamilyGolden, logits_loss_and_gradients) {
  Golden g(GetParam());
  nn::Module& module = g.checkpoint.model.module();
  module.enable_gradients();
  Tape tape;
  Context context;
  context.tape = &tape;
  context.layout = &g.layout;
  const Var logits = g.model().logits(context, g.ids, {g.types});
  EXPECT_LT(relative_difference(logits.value(), g.file.tensor("logits")), 1e-5);
  const std::vector<std::int32_t> labels = integers(g.file, "labels");
  const autograd::Loss loss = autograd::cross_entropy(context, logits, labels, {});
  const double mean = loss.value / static_cast<double>(loss.counted);
  EXPECT_NEAR(mean, values_of(g.file.tensor("loss"))[0], 2e-5 * std::max(1.0, mean));
  tape.backward(loss.sum, Tensor::from<float>({1 / static_cast<float>(loss.counted)}, {1}));
  module.settle_gradients();

  const JsonReader reader(g.checkpoint.config);
  const WeightMap& map = family_of(reader).weights;
  const FilePrefix prefix = find_prefix(
      map, [&](const std::string& name) { return g.file.contains("gradient." + name); });
  double largest = 0;  // the keys' bias has no gradient but what rounding leaves
  for (const std::string& name : g.file.names()) {
    if (!name.starts_with("gradient.")) continue;
    for (const double v : values_of(g.file.tensor(name))) largest = std::max(largest, std::abs(v));
  }
  std::size_t seen = 0;
  for (const StoredPart& part : stored_parts(map, g.model().config(), module, prefix)) {
    const std::string name = "gradient." + part.names.front();
    if (!g.file.contains(name)) continue;  // BERT's pooler in a model without head, say
    const Tensor gradient = part.parameter->var.grad().narrow(0, part.start, part.rows);
    const std::vector<double> own = values_of(gradient), theirs = values_of(g.file.tensor(name));
    ASSERT_EQ(own.size(), theirs.size()) << name;
    double size = 2e-3 * largest, difference = 0;
    for (std::size_t i = 0; i < own.size(); ++i) {
      size = std::max(size, std::abs(theirs[i]));
      difference = std::max(difference, std::abs(own[i] - theirs[i]));
    }
    EXPECT_LT(difference, 1e-4 * size) << name;
    ++seen;
  }
  const auto expected = static_cast<std::size_t>(
      std::count_if(g.file.names().begin(), g.file.names().end(),
                    [](const std::string& name) { return name.starts_with("gradient."); }));
  EXPECT_EQ(seen, expected);
}

TEST_P(FamilyGolden, load_save_load_is_identical) {
  const Golden g(GetParam());
  const TempFolder folder;
  save_checkpoint(g.checkpoint, folder / "a");
  const Checkpoint again = load_checkpoint(folder / "a");
  save_checkpoint(again, folder / "b");
  for (const char* name : {"config.json", "model.safetensors"})
    EXPECT_EQ(read_file(folder / "a" / name), read_file(folder / "b" / name)) << name;
  Context context;
  context.layout = &g.layout;
  EXPECT_TRUE(same_bits(again.model.logits(context, g.ids, {g.types}).value(),
                        g.model().logits(context, g.ids, {g.types}).value()));
  // transformers' own names, each with transformers' own values.
  const auto original = io::SafetensorsFile::open(g.folder / "model.safetensors"),
             saved = io::SafetensorsFile::open(folder / "a" / "model.safetensors");
  for (const std::string& name : saved.names()) {
    ASSERT_TRUE(original.contains(name)) << name;
    EXPECT_TRUE(same_bits(saved.tensor(name), original.tensor(name))) << name;
  }
}

TEST_P(FamilyGolden, read_only_weights_give_the_same_bits_and_refuse_training) {
  const Golden g(GetParam());
  LoadOptions options;
  options.read_only = true;
  Checkpoint lent = load_checkpoint(g.folder, options);
  lent.model.module().keep_packed();
  Context context;
  context.layout = &g.layout;
  EXPECT_TRUE(same_bits(lent.model.logits(context, g.ids, {g.types}).value(),
                        g.model().logits(context, g.ids, {g.types}).value()));
  EXPECT_THROW(lent.model.module().enable_gradients(), ArgumentError);
}

TEST_P(FamilyGolden, a_text_has_the_same_bits_alone) {
  const Golden g(GetParam());
  Context context;
  context.layout = &g.layout;
  const Tensor all = g.model().hidden(context, g.ids, {g.types}).value();
  for (std::size_t b = 0; b < 3; ++b) {
    const auto start = static_cast<std::size_t>(g.layout.starts[b]);
    const auto n = static_cast<std::size_t>(g.layout.starts[b + 1]) - start;
    const RaggedLayout layout =
        RaggedLayout::from_lengths(std::vector<std::int64_t>{static_cast<std::int64_t>(n)});
    Context alone;
    alone.layout = &layout;
    const std::span<const std::int32_t> ids(g.ids), types(g.types);
    const Tensor one =
        g.model()
            .hidden(alone, ids.subspan(start, n), {types.empty() ? types : types.subspan(start, n)})
            .value();
    EXPECT_LT(relative_difference(one, all.narrow(0, g.layout.starts[b], one.dim(0))), 1e-6);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, FamilyGolden, ::testing::ValuesIn(golden_names(false)),
                         [](const auto& param_info) { return param_info.param; });

class FamilyTrunk : public ::testing::TestWithParam<std::string> {};

TEST_P(FamilyTrunk, hidden_states_and_pooled_vector) {
  const Golden g(GetParam());
  Context context;
  context.layout = &g.layout;
  const Var hidden = g.model().hidden(context, g.ids, {g.types});
  EXPECT_LT(relative_difference(hidden.value(), g.file.tensor("hidden")), 1e-5);
  if (g.file.contains("pooled")) {
    EXPECT_LT(
        relative_difference(g.model().pooled(context, hidden).value(), g.file.tensor("pooled")),
        1e-5);
  }
  EXPECT_THROW((void)g.model().logits(context, g.ids), ArgumentError);
}

INSTANTIATE_TEST_SUITE_P(Families, FamilyTrunk, ::testing::ValuesIn(golden_names(true)),
                         [](const auto& param_info) { return param_info.param; });

// A copy of a golden folder to change.
class ChangedFolder {
 public:
  explicit ChangedFolder(const std::string& name) {
    config = Json::parse(read_file(kFolder / name / "config.json"));
    const auto file = io::SafetensorsFile::open(kFolder / name / "model.safetensors");
    for (const std::string& n : file.names()) tensors.emplace_back(n, file.tensor(n));
  }
  Tensor* find(const std::string& name) {
    for (auto& [n, tensor] : tensors)
      if (n == name) return &tensor;
    return nullptr;
  }
  void erase(const std::string& name) {
    std::erase_if(tensors, [&](const auto& t) { return t.first == name; });
  }
  Checkpoint load(const LoadOptions& options = {}) const {
    const TempFolder folder;
    io::save_safetensors(folder / "model.safetensors", tensors);
    folder.write("config.json", config.dump());
    return load_checkpoint(folder.path(), options);
  }
  std::string refusal() const {
    try {
      (void)load();
    } catch (const ModelError& error) {
      return error.what();
    }
    return "";
  }

  Json config;
  std::vector<std::pair<std::string, Tensor>> tensors;
};

Tensor logits_of(const Checkpoint& checkpoint) {
  const RaggedLayout layout = RaggedLayout::from_lengths(std::vector<std::int64_t>{5});
  Context context;
  context.layout = &layout;
  return checkpoint.model.logits(context, std::vector<std::int32_t>{5, 6, 7, 8, 9}).value();
}

TEST(Families, b61_tied_and_untied_heads) {
  const std::string head = "cls.predictions.decoder.weight",
                    table = "bert.embeddings.word_embeddings.weight";
  ChangedFolder f("bert_masked_lm");
  f.erase(head);
  const Tensor tied = logits_of(f.load());  // head missing, tied: shared
  ChangedFolder untied = f;
  untied.config["tie_word_embeddings"] = false;
  EXPECT_NE(untied.refusal().find(head), std::string::npos);  // missing, not tied: an error
  ChangedFolder swapped = f;  // embedding missing, head present, tied: shared from the head
  swapped.tensors.emplace_back(head, *swapped.find(table));
  swapped.erase(table);
  EXPECT_TRUE(same_bits(logits_of(swapped.load()), tied));
  ChangedFolder both = f;  // both, different
  Tensor other = both.find(table)->clone();
  other.fill(0.5);
  both.tensors.emplace_back(head, other);
  EXPECT_TRUE(same_bits(logits_of(both.load()), tied));  // tied: the embedding
  both.config["tie_word_embeddings"] = false;
  EXPECT_FALSE(same_bits(logits_of(both.load()), tied));
  // One storage: an edit of the embedding reaches the head.
  Checkpoint one = f.load();
  one.model.module().find("embeddings.token.weight")->var.value().fill(0);
  const Tensor bias = one.model.module().find("head.out.bias")->var.value();
  EXPECT_TRUE(same_bits(logits_of(one).select(0, 0).contiguous(), bias.contiguous()));
}

TEST(Families, b62_prefixes_buffers_and_legacy_names) {
  ChangedFolder f("bert_masked_lm");
  const Tensor expected = logits_of(f.load());
  for (auto& [name, tensor] : f.tensors) {
    const auto rename = [&name = name](const std::string& from, const std::string& to) {
      if (const std::size_t at = name.find(from); at != std::string::npos)
        name.replace(at, from.size(), to);
    };
    rename("LayerNorm.weight", "LayerNorm.gamma");
    rename("LayerNorm.bias", "LayerNorm.beta");
    name.insert(0, "module.");
  }
  f.tensors.emplace_back("module.bert.embeddings.position_ids",
                         Tensor::zeros({1, 16}, DType::kInt64));
  EXPECT_TRUE(same_bits(logits_of(f.load()), expected));
}

TEST(Families, unknown_names_are_errors_that_say_what_is_known) {
  const auto refused = [](const char* key, const Json& value, const char* known) {
    ChangedFolder f("bert_masked_lm");
    f.config[key] = value;
    const std::string message = f.refusal();
    EXPECT_NE(message.find(key), std::string::npos) << message;
    EXPECT_NE(message.find(known), std::string::npos) << message;
  };
  refused("model_type", "brt", "\"modernbert\"");
  refused("architectures", Json(Json::Array{Json("BertForDancing")}), "BertForMaskedLM");
  refused("hidden_act", "mish", "gelu");
  refused("position_embedding_type", "relative_key", "absolute");
  refused("is_decoder", true, "false");
  refused("hidden_size", 15, "num_attention_heads");
  ChangedFolder rope("modernbert_masked_lm");
  rope.config["rope_parameters"]["full_attention"]["rope_type"] = "longrope";
  EXPECT_NE(rope.refusal().find("\"yarn\""), std::string::npos) << rope.refusal();
}

TEST(Families, missing_surplus_and_misshapen_tensors_are_named) {
  ChangedFolder f("bert_masked_lm");
  ChangedFolder missing = f;
  missing.erase("bert.encoder.layer.1.output.dense.bias");
  missing.erase("bert.encoder.layer.0.attention.self.key.weight");
  EXPECT_NE(missing.refusal().find("layer.1.output.dense.bias [16]"), std::string::npos)
      << missing.refusal();
  EXPECT_NE(missing.refusal().find("layer.0.attention.self.key.weight [16, 16]"),
            std::string::npos);
  ChangedFolder surplus = f;
  surplus.tensors.emplace_back("bert.encoder.layer.2.output.dense.bias", Tensor::zeros({16}));
  EXPECT_NE(surplus.refusal().find("layer.2.output.dense.bias"), std::string::npos);
  ChangedFolder shape = f;
  shape.config["intermediate_size"] = 31;
  EXPECT_NE(shape.refusal().find("[31, 16]"), std::string::npos) << shape.refusal();
  EXPECT_NE(shape.refusal().find("[32, 16]"), std::string::npos) << shape.refusal();
  ChangedFolder nan = f;
  Tensor bad = nan.find("bert.encoder.layer.0.output.dense.bias")->clone();
  bad.data<float>()[3] = std::numeric_limits<float>::quiet_NaN();
  *nan.find("bert.encoder.layer.0.output.dense.bias") = bad;
  EXPECT_NE(nan.refusal().find("element 3"), std::string::npos) << nan.refusal();
}

TEST(Families, another_head_starts_fresh_and_says_so) {
  ChangedFolder f("bert_masked_lm");
  LoadOptions options;
  options.head = HeadKind::kSequence;
  options.labels = {"a", "b", "c"};
  options.seed = 7;
  const Checkpoint fresh = f.load(options);
  EXPECT_EQ(fresh.fresh, (std::vector<std::string>{"classifier.bias", "classifier.weight",
                                                   "pooler.bias", "pooler.weight"}));
  EXPECT_EQ(logits_of(fresh).shape(), Shape({1, 3}));
  const TempFolder folder;
  save_checkpoint(fresh, folder.path());
  EXPECT_TRUE(same_bits(logits_of(load_checkpoint(folder.path())), logits_of(fresh)));
  options.head = HeadKind::kNone;
  options.labels.clear();
  EXPECT_TRUE(f.load(options).fresh.empty());
}

}  // namespace
