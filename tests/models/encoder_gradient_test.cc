// Whole classifiers against central differences in double, and what a backward pass leaves behind.
#include <gtest/gtest.h>

#include "autograd/functions.h"
#include "autograd/gradcheck.h"
#include "models/encoder_support.h"
#include "support/tensors.h"

using namespace qkv;
using namespace qkv::testing;

namespace {

std::vector<Form> forms() {
  std::vector<Form> forms;
  const auto add = [&](const char* name, EncoderConfig config, auto&& change) {
    change(config);
    forms.push_back({name, std::move(config)});
  };
  const auto same = [](EncoderConfig&) {};
  add("pre", tiny_config(), same);
  add("bert", tiny_bert(), same);
  add("modern", tiny_modern(), same);
  add("post_mean", tiny_config(), [](EncoderConfig& c) {
    c.norm_placement = NormPlacement::kPost;
    c.set_placement_defaults();
  });
  add("sandwich", tiny_config(),
      [](EncoderConfig& c) { c.norm_placement = NormPlacement::kSandwich; });
  add("sandwich_rms", tiny_modern(),
      [](EncoderConfig& c) { c.norm_placement = NormPlacement::kSandwich; });
  add("no_norm", tiny_config(), [](EncoderConfig& c) { c.norm = NormChoice::kNone; });
  add("no_norm_post", tiny_config(), [](EncoderConfig& c) {
    c.norm = NormChoice::kNone;
    c.norm_placement = NormPlacement::kPost;
  });
  add("attention_only", tiny_config(), [](EncoderConfig& c) { c.d_ff = 0; });
  add("no_positions_max", tiny_config(), [](EncoderConfig& c) {
    c.positions = PositionKind::kNone;
    c.pooling = ops::Pooling::kMax;
  });
  add("sinusoidal_last", tiny_config(), [](EncoderConfig& c) {
    c.positions = PositionKind::kSinusoidal;
    c.pooling = ops::Pooling::kLast;
  });
  add("naive", tiny_config(), [](EncoderConfig& c) { c.attention = AttentionKind::kNaive; });
  add("window", tiny_modern(), [](EncoderConfig& c) {
    c.attention = AttentionKind::kWindow;
    c.window = 2;
  });
  add("linear", tiny_modern(), [](EncoderConfig& c) { c.attention = AttentionKind::kLinear; });
  add("geglu", tiny_config(), [](EncoderConfig& c) { c.activation = ops::Activation::kGeglu; });
  add("embedding_norm_pre", tiny_config(), [](EncoderConfig& c) {
    c.embedding_norm = true;
    c.pooler = true;
  });
  return forms;
}

std::vector<autograd::NamedVar> parameters(EncoderClassifier& model) {
  std::vector<autograd::NamedVar> named;
  model.module().for_each([&](nn::Parameter& p) { named.push_back({p.name, p.var}); });
  return named;
}

}  // namespace

class WholeEncoder : public ::testing::TestWithParam<Form> {};

TEST_P(WholeEncoder, gradients_equal_differences) {
  for (const double p : {0.0, 0.3}) {
    EncoderConfig config = GetParam().config;
    set_dropouts(config, p);
    EncoderClassifier model(config, 3, DType::kFloat64);
    const TinyBatch batch = tiny_batch({5, 1, 3}, config.vocab_size, config.num_labels());
    autograd::GradcheckOptions options;
    options.max_per_tensor = 8;
    options.step = 1e-6;
    const autograd::GradcheckReport report = autograd::check_gradients(
        parameters(model),
        [&](Context& context) {
          context.training = true;
          context.seed = 11;
          context.layout = &batch.layout;
          return autograd::cross_entropy(context, model.forward(context, batch.ids), batch.labels,
                                         {0.1, -100})
              .sum;
        },
        options);
    EXPECT_LE(report.worst, 2e-5) << report.where;
  }
}

TEST_P(WholeEncoder, b14_training_without_dropout_equals_inference) {
  const EncoderClassifier model(GetParam().config, 3);
  const TinyBatch batch = tiny_batch({6, 2, 1}, 19, 5);
  Tape tape;
  Context training, plain;
  training.tape = &tape;
  training.training = true;
  training.layout = plain.layout = &batch.layout;
  EXPECT_TRUE(same_bits(model.forward(training, batch.ids).value(),
                        model.forward(plain, batch.ids).value()));
}

TEST_P(WholeEncoder, every_parameter_gets_a_gradient) {
  EncoderClassifier model(GetParam().config, 3);
  model.module().enable_gradients();
  const TinyBatch batch = tiny_batch({6, 2, 4}, 19, 5);
  Tape tape;
  Context context;
  context.tape = &tape;
  context.layout = &batch.layout;
  const autograd::Loss loss =
      autograd::cross_entropy(context, model.forward(context, batch.ids), batch.labels, {});
  tape.backward(loss.sum, Tensor::from<float>({1}, {1}));
  model.module().for_each([](nn::Parameter& p) {
    ASSERT_TRUE(p.var.has_grad()) << p.name;
    double sum = 0;
    for (const double g : values_of(p.var.grad())) sum += g * g;
    EXPECT_GT(sum, 0) << p.name;
  });
}

INSTANTIATE_TEST_SUITE_P(Forms, WholeEncoder, ::testing::ValuesIn(forms()),
                         [](const auto& param_info) { return param_info.param.name; });
