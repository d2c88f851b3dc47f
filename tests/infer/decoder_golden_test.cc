// Every decoder family against transformers: logits, loss, gradients, greedy texts, penalties, beam
// search (tools/make_decoder_goldens.py).
#include <filesystem>
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "autograd/functions.h"
#include "infer/beam_search.h"
#include "infer/generate.h"
#include "infer/transformer_model.h"
#include "io/safetensors.h"
#include "models/checkpoint.h"
#include "models/families/weight_names.h"
#include "support/files.h"
#include "support/tensors.h"

using namespace qkv;
using namespace qkv::infer;
using namespace qkv::testing;

namespace {

using Ids = std::vector<std::int32_t>;

std::filesystem::path folder_of(const std::string& family) {
  return std::filesystem::path(QKV_SOURCE_DIR) / "tests/golden/decoders" / family;
}

struct Golden {
  explicit Golden(const std::string& family)
      : file(io::SafetensorsFile::open(folder_of(family) / "golden.safetensors")),
        checkpoint(load_checkpoint(folder_of(family))) {
    const Tensor lengths = file.tensor("lengths"), all = file.tensor("ids");
    layout = RaggedLayout::from_lengths(
        {lengths.data<std::int64_t>(), static_cast<std::size_t>(lengths.numel())});
    ids.assign(all.data<std::int32_t>(), all.data<std::int32_t>() + all.numel());
  }
  Ids text(std::int64_t b) const {
    const auto at = static_cast<std::size_t>(b);
    return {ids.begin() + layout.starts[at], ids.begin() + layout.starts[at + 1]};
  }
  Ids row(const std::string& name, std::int64_t i) const {
    const Tensor t = file.tensor(name);
    const std::int64_t width = t.dim(t.rank() - 1);
    const std::int32_t* first = t.data<std::int32_t>() + i * width;
    return {first, first + width};
  }
  std::unique_ptr<LanguageModel> model() {
    LanguageModel::Facts facts;
    facts.end_ids = ends();
    return make_language_model(std::make_shared<const Transformer>(std::move(checkpoint.model)),
                               facts);
  }
  static Ids ends() { return {2, 17, 31, 40, 52}; }

  io::SafetensorsFile file;
  Checkpoint checkpoint;
  RaggedLayout layout;
  Ids ids;
};

// Ids up to the first end id: transformers keeps it and fills up behind it.
Ids before_end(const Ids& ids, bool* ended = nullptr) {
  Ids before;
  const Ids ends = Golden::ends();
  for (const std::int32_t id : ids) {
    const bool end = std::find(ends.begin(), ends.end(), id) != ends.end();
    if (ended != nullptr) *ended = end;
    if (end) break;
    before.push_back(id);
  }
  return before;
}

class DecoderGolden : public ::testing::TestWithParam<std::string> {};

}  // namespace

TEST_P(DecoderGolden, logits_loss_and_gradients) {
  Golden golden(GetParam());
  Transformer& model = golden.checkpoint.model;
  model.module().enable_gradients();
  Tape tape;
  Context context;
  context.tape = &tape;
  context.layout = &golden.layout;
  const Var logits = model.logits(context, golden.ids);
  EXPECT_LE(relative_difference(logits.value(), golden.file.tensor("logits")), 2e-5);
  Ids targets(golden.ids.begin() + 1, golden.ids.end());
  targets.push_back(-100);
  for (std::int64_t b = 0; b < golden.layout.batch(); ++b)
    targets[static_cast<std::size_t>(golden.layout.starts[static_cast<std::size_t>(b) + 1]) - 1] =
        -100;
  const autograd::Loss loss = autograd::cross_entropy(context, logits, targets, {0, -100});
  const double expected = values_of(golden.file.tensor("loss"))[0];
  EXPECT_NEAR(loss.value / static_cast<double>(loss.counted), expected, 1e-5 * expected);
  const Tensor seed = Tensor::empty({1});
  seed.fill(1 / static_cast<double>(loss.counted));
  tape.backward(loss.sum, seed);
  model.module().settle_gradients();
  const Family& family = family_of(JsonReader(golden.checkpoint.config));
  const FilePrefix prefix = find_prefix(family.weights, [&](const std::string& name) {
    return golden.file.contains("gradient." + name);
  });
  int compared = 0;
  for (const StoredPart& part :
       stored_parts(family.weights, model.config(), model.module(), prefix)) {
    Tensor gradient = part.parameter->var.grad().narrow(0, part.start, part.rows);
    if (part.transposed && gradient.rank() == 2) gradient = gradient.transpose(0, 1);
    const Tensor wanted = golden.file.tensor("gradient." + part.names.front());
    EXPECT_LE(relative_difference(gradient.contiguous(), wanted), 1e-4) << part.names.front();
    ++compared;
  }
  std::int64_t known = 0;
  for (const std::string& name : golden.file.names())
    known += name.starts_with("gradient.") ? 1 : 0;
  EXPECT_EQ(compared, known);
}

TEST_P(DecoderGolden, greedy_texts) {
  Golden golden(GetParam());
  const auto model = golden.model();
  std::vector<Ids> prompts;
  for (std::int64_t b = 0; b < 3; ++b) prompts.push_back(golden.text(b));
  GenerateOptions options;
  options.max_new_tokens = 12;
  const std::vector<Generated> plain = generate(*model, prompts, options);
  options.sampling.repetition_penalty = 1.4;
  options.min_new_tokens = 12;
  const std::vector<Generated> penalised = generate(*model, prompts, options);
  for (std::size_t b = 0; b < 3; ++b) {
    const std::string number = std::to_string(b);
    bool ended = false;
    EXPECT_EQ(plain[b].ids, before_end(golden.row("greedy." + number, 0), &ended));
    EXPECT_EQ(plain[b].finish, ended ? FinishReason::kStop : FinishReason::kLength);
    EXPECT_EQ(penalised[b].ids, golden.row("penalised." + number, 0));
  }
}

TEST_P(DecoderGolden, b21_beam_search) {
  Golden golden(GetParam());
  const auto model = golden.model();
  using Stopping = BeamOptions::EarlyStopping;
  struct Case {
    const char* name;
    double penalty;
    Stopping stopping;
  };
  for (const Case& c :
       {Case{"False", 1.0, Stopping::kHeuristic}, Case{"True", 0.3, Stopping::kWhenFull},
        Case{"never", 2.0, Stopping::kNever}}) {
    for (std::int64_t b = 0; b < 3; ++b) {
      BeamOptions options;
      options.beams = options.results = 3;
      options.max_new_tokens = 12;
      options.length_penalty = c.penalty;
      options.early_stopping = c.stopping;
      const std::vector<Hypothesis> found = beam_search(*model, golden.text(b), options);
      const std::string key = "beams." + std::to_string(b) + "." + c.name;
      const std::vector<double> scores = values_of(golden.file.tensor(key + ".scores"));
      ASSERT_EQ(found.size(), 3U);
      for (std::size_t i = 0; i < 3; ++i) {
        EXPECT_EQ(found[i].ids, before_end(golden.row(key, static_cast<std::int64_t>(i))))
            << key << " " << i;
        EXPECT_NEAR(found[i].score, scores[i], 1e-5 * std::abs(scores[i])) << key << " " << i;
      }
    }
  }
}

TEST_P(DecoderGolden, save_and_load_give_the_same_bits) {
  Golden golden(GetParam());
  const TempFolder folder;
  save_checkpoint(golden.checkpoint, folder.path());
  const Checkpoint again = load_checkpoint(folder.path());
  std::size_t compared = 0;
  again.model.module().for_each([&](const nn::Parameter& p) {
    ++compared;
    EXPECT_TRUE(
        same_bits(p.var.value(), golden.checkpoint.model.module().find(p.name)->var.value()));
  });
  EXPECT_GT(compared, 10U);
}

INSTANTIATE_TEST_SUITE_P(Families, DecoderGolden,
                         ::testing::Values("gpt2", "llama", "llama3", "mistral", "qwen2", "qwen3",
                                           "gemma3"),
                         [](const auto& param_info) { return param_info.param; });
