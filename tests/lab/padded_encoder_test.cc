// The padded encoder with the right arguments is the engine's encoder; with the wrong ones it is
// not.
#include "lab/padded_encoder.h"

#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "autograd/functions.h"
#include "lab/lab.h"
#include "support/files.h"
#include "support/tensors.h"

using namespace qkv;
using namespace qkv::testing;

namespace {

EncoderConfig config_with(PositionKind positions) {
  EncoderConfig config;
  config.d_model = 32;
  config.num_layers = 2;
  config.num_heads = 2;
  config.d_ff = 48;
  config.vocab_size = 20;
  config.max_positions = 16;
  config.positions = positions;
  config.labels = {"a", "b", "c"};
  return config;
}

std::vector<Sample> samples() {
  return {{{2, 5, 7, 3}, 0, 0}, {{2, 9, 9, 4, 11, 6, 8, 3}, 1, 1}, {{2, 3}, 2, 2}};
}

std::vector<const Sample*> pointers(const std::vector<Sample>& all) {
  std::vector<const Sample*> found;
  for (const Sample& s : all) found.push_back(&s);
  return found;
}

Tensor padded_logits(const EncoderClassifier& model, double scale, double fill) {
  const std::vector<Sample> all = samples();
  const lab::PaddedBatch batch = lab::pad_batch(pointers(all), 0);
  Context context;
  return lab::PaddedEncoder(model).forward(context, batch, {scale, fill}).value();
}

Tensor packed_logits(const EncoderClassifier& model) {
  const std::vector<Sample> all = samples();
  const TokenBatch batch = make_batch(pointers(all));
  Context context;
  context.layout = &batch.layout;
  return model.forward(context, batch.ids).value();
}

double right_scale(const EncoderClassifier& model) {
  return lab::PaddedEncoder(model).right_scale();
}

}  // namespace

TEST(PaddedEncoder, right_arguments_give_the_engine_s_logits) {
  for (const PositionKind kind : {PositionKind::kLearned, PositionKind::kRope}) {
    const EncoderClassifier model(config_with(kind), 3);
    EXPECT_LT(relative_difference(padded_logits(model, right_scale(model), -INFINITY),
                                  packed_logits(model)),
              1e-5);
  }
}

TEST(PaddedEncoder, zeros_for_padding_change_the_texts_beside_a_longer_one_only) {
  const EncoderClassifier model(config_with(PositionKind::kRope), 3);
  const Tensor right = packed_logits(model), wrong = padded_logits(model, right_scale(model), 0);
  EXPECT_LT(relative_difference(wrong.narrow(0, 1, 1), right.narrow(0, 1, 1)),
            1e-5);  // the longest
  EXPECT_GT(relative_difference(wrong.narrow(0, 0, 1), right.narrow(0, 0, 1)), 1e-3);
  EXPECT_GT(relative_difference(wrong.narrow(0, 2, 1), right.narrow(0, 2, 1)), 1e-3);
}

TEST(PaddedEncoder, a_very_low_number_for_padding_is_as_good_as_skipping_here) {
  const EncoderClassifier model(config_with(PositionKind::kLearned), 3);
  EXPECT_LT(
      relative_difference(padded_logits(model, right_scale(model), -1e9), packed_logits(model)),
      1e-5);
}

TEST(PaddedEncoder, missing_scale_changes_every_text) {
  const EncoderClassifier model(config_with(PositionKind::kRope), 3);
  const Tensor right = packed_logits(model), wrong = padded_logits(model, 1, -INFINITY);
  for (std::int64_t b = 0; b < 3; ++b)
    EXPECT_GT(relative_difference(wrong.narrow(0, b, 1), right.narrow(0, b, 1)), 1e-5) << b;
}

TEST(PaddedEncoder, right_arguments_give_the_engine_s_gradients) {
  const std::vector<Sample> all = samples();
  const std::vector<std::int32_t> targets{0, 1, 2};
  const auto gradients = [&](bool padded) {
    EncoderClassifier model(config_with(PositionKind::kRope), 3);
    model.module().enable_gradients();
    Tape tape;
    Context context;
    context.tape = &tape;
    const lab::PaddedBatch wide = lab::pad_batch(pointers(all), 0);
    const TokenBatch packed = make_batch(pointers(all));
    context.layout = &packed.layout;
    const lab::PaddedEncoder encoder(model);
    const Var logits = padded ? encoder.forward(context, wide, {encoder.right_scale(), -INFINITY})
                              : model.forward(context, packed.ids);
    const autograd::Loss loss = autograd::cross_entropy(context, logits, targets, {});
    const Tensor seed = Tensor::empty({1});
    seed.fill(1);
    tape.backward(loss.sum, seed);
    model.module().settle_gradients();
    std::vector<Tensor> found;
    for (const nn::ParameterGroup& group : model.module().groups())
      found.push_back(group.gradients.clone());
    return found;
  };
  const std::vector<Tensor> a = gradients(true), b = gradients(false);
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_LT(relative_difference(a[i], b[i]), 1e-4) << i;
}

TEST(PaddedEncoder, other_forms_are_refused) {
  EncoderConfig config = config_with(PositionKind::kLearned);
  config.norm_placement = NormPlacement::kPost;
  config.set_placement_defaults();
  const EncoderClassifier model(config, 1);
  EXPECT_THROW(lab::PaddedEncoder{model}, UnsupportedError);
}

// A small data set of the same form: the whole experiment, from reading to the picture.
TEST(BrokenAttention, runs_on_data_of_the_same_form) {
  TempFolder folder;
  const std::string tail =
      " that I bought last week for my mother who lives far away and has asked me twice when it "
      "comes to her door";
  std::string train = "text\tlabel\tlength\n", test = train;
  for (int i = 0; i < 60; ++i) {
    const std::string n = std::to_string(i);
    train += "where is the red kettle number " + n + (i % 2 == 0 ? tail : "") +
             "\twhere\tshort\n请把第" + n + "个水壶退掉\treturn\tshort\n";
  }
  for (int i = 0; i < 12; ++i) {
    const char* length = i % 3 == 0 ? "short" : i % 3 == 1 ? "medium" : "long";
    test += "where is the blue kettle" + (i % 3 == 2 ? tail : "") + "\twhere\t" + length + "\n";
    test += std::string("请把红色的水壶退掉\treturn\t") + length + "\n";
  }
  folder.write("train.tsv", train);
  folder.write("test.tsv", test);
  lab::Options options;
  options.data = folder.path();
  const lab::Result result = lab::find_experiment("broken-attention").run(options);
  ASSERT_EQ(result.table.rows.size(), 8u);
  for (const char* where : {"use_only", "training_and_use"}) {
    for (const char* fault : {"none", "no_scale", "zero_mask", "both"}) {
      const Json& cell = result.measured.at(where).at(fault);
      if (std::string(fault) == "none") {
        EXPECT_GE(cell.at("accuracy_all").as_double(), 0.9) << where;
      }
      const bool zeros = std::string(fault) == "zero_mask" || std::string(fault) == "both";
      EXPECT_EQ(cell.at("attention_arrive_to_padding").as_double() > 0, zeros)
          << where << " " << fault;
    }
  }
  // The rightly trained model is the one that the faults of use start from.
  EXPECT_EQ(result.measured.at("use_only").at("none").dump(),
            result.measured.at("training_and_use").at("none").dump());
  ASSERT_EQ(result.pictures.size(), 1u);
  EXPECT_NE(result.pictures[0].bytes.find("padding"), std::string::npos);
}
