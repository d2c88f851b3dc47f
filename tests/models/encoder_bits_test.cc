// Bits that depend on neither threads nor batch mates, and dropout that is a function of the
// sample.
#include <cmath>

#include <gtest/gtest.h>

#include "qkv/threads.h"

#include "autograd/functions.h"
#include "models/encoder_support.h"
#include "support/tensors.h"

using namespace qkv;
using namespace qkv::testing;

namespace {

EncoderConfig wide_config() {
  EncoderConfig c = tiny_config();
  c.d_model = 64;
  c.d_ff = 160;
  c.max_positions = 70;
  set_dropouts(c, 0.2);
  return c;
}

struct Result {
  Tensor logits;
  std::vector<Tensor> gradients;
};

Result train_step(EncoderClassifier& model, const TinyBatch& batch, std::uint32_t step = 3) {
  model.module().enable_gradients();
  model.module().clear_gradients();
  Tape tape;
  Context context;
  context.tape = &tape;
  context.training = true;
  context.seed = 9;
  context.step = step;
  context.layout = &batch.layout;
  const Var logits = model.forward(context, batch.ids);
  Result result{logits.value().clone(), {}};
  const autograd::Loss loss = autograd::cross_entropy(context, logits, batch.labels, {});
  tape.backward(loss.sum, Tensor::from<float>({1}, {1}));
  for (const nn::ParameterGroup& group : model.module().groups())
    result.gradients.push_back(group.gradients.clone());
  return result;
}

void expect_same(const Result& a, const Result& b) {
  EXPECT_TRUE(same_bits(a.logits, b.logits));
  ASSERT_EQ(a.gradients.size(), b.gradients.size());
  for (std::size_t i = 0; i < a.gradients.size(); ++i)
    EXPECT_TRUE(same_bits(a.gradients[i], b.gradients[i])) << i;
}

// Rows of text `b` in the logits of the batch.
Tensor logits_of(const EncoderClassifier& model, const RaggedLayout& layout,
                 const std::vector<std::int32_t>& ids) {
  Context context;
  context.layout = &layout;
  return model.forward(context, ids).value();
}

}  // namespace

TEST(EncoderBits, do_not_depend_on_threads) {
  const int before = num_threads();
  for (EncoderConfig config : {wide_config(), tiny_bert(), tiny_modern()}) {
    set_dropouts(config, 0.2);
    config.max_positions = 70;
    EncoderClassifier model(config, 5);
    const TinyBatch batch = tiny_batch({7, 65, 1, 40, 12, 33, 3, 60, 18, 55, 9, 70, 64, 31}, 19, 5);
    set_num_threads(1);
    const Result one = train_step(model, batch);
    for (const int threads : {2, 3}) {
      set_num_threads(threads);
      expect_same(train_step(model, batch), one);
    }
  }
  set_num_threads(before);
}

TEST(EncoderBits, repeat_and_change_with_the_step) {
  EncoderClassifier model(wide_config(), 5);
  const TinyBatch batch = tiny_batch({7, 20, 1}, 19, 5);
  const Result first = train_step(model, batch);
  expect_same(train_step(model, batch), first);
  EXPECT_FALSE(same_bits(train_step(model, batch, 4).logits, first.logits));
}

TEST(EncoderBits, weights_do_not_depend_on_threads) {
  const int before = num_threads();
  set_num_threads(1);
  const EncoderClassifier one(wide_config(), 5);
  set_num_threads(3);
  const EncoderClassifier three(wide_config(), 5);
  set_num_threads(before);
  for (std::size_t i = 0; i < one.module().groups().size(); ++i) {
    EXPECT_TRUE(same_bits(one.module().groups()[i].values, three.module().groups()[i].values));
  }
}

TEST(EncoderBatch, b14_b23_b71_a_text_alone_equals_the_text_in_a_batch) {
  for (EncoderConfig config : {wide_config(), tiny_config(), tiny_bert(), tiny_modern()}) {
    config.max_positions = 70;
    const EncoderClassifier model(config, 5);
    const std::vector<std::int64_t> lengths{6, 2, 1, 12, 5, 70, 33, 17, 64, 40, 70, 9};
    const TinyBatch batch = tiny_batch(lengths, 19, 5);
    const Tensor together = logits_of(model, batch.layout, batch.ids);
    for (std::size_t b = 0; b < lengths.size(); ++b) {
      const RaggedLayout layout = RaggedLayout::from_lengths({&lengths[b], 1});
      const std::vector<std::int32_t> ids(batch.ids.begin() + batch.layout.starts[b],
                                          batch.ids.begin() + batch.layout.starts[b + 1]);
      const Tensor row = together.narrow(0, static_cast<std::int64_t>(b), 1).contiguous();
      EXPECT_TRUE(same_bits(logits_of(model, layout, ids), row)) << b;
    }
  }
}

TEST(EncoderBatch, b36_dropout_follows_the_sample_not_its_place) {
  const EncoderClassifier model(wide_config(), 5);
  const std::vector<std::int64_t> lengths{6, 3};
  TinyBatch batch = tiny_batch(lengths, 19, 5);
  batch.layout.samples = {40, 41};
  const auto run = [&](const RaggedLayout& layout, const std::vector<std::int32_t>& ids) {
    Context context;
    context.training = true;
    context.layout = &layout;
    return model.forward(context, ids).value();
  };
  const Tensor together = run(batch.layout, batch.ids);
  RaggedLayout second = RaggedLayout::from_lengths({&lengths[1], 1});
  const std::vector<std::int32_t> ids(batch.ids.begin() + 6, batch.ids.end());
  second.samples = {41};
  EXPECT_TRUE(same_bits(run(second, ids), together.narrow(0, 1, 1).contiguous()));
  second.samples = {42};
  EXPECT_GE(relative_difference(run(second, ids), together.narrow(0, 1, 1)), 1e-2);
}

TEST(EncoderBatch, b09_no_dropout_outside_training) {
  EncoderConfig config = wide_config();
  const EncoderClassifier plain(config, 5);
  set_dropouts(config, 0.9);
  const EncoderClassifier dropping(config, 5);
  const TinyBatch batch = tiny_batch({6, 2, 30}, 19, 5);
  const Tensor expected = logits_of(plain, batch.layout, batch.ids);
  EXPECT_TRUE(same_bits(logits_of(dropping, batch.layout, batch.ids), expected));
  EXPECT_TRUE(same_bits(logits_of(dropping, batch.layout, batch.ids), expected));
}

TEST(EncoderBatch, b09_dropout_of_everything_stays_finite) {
  EncoderConfig config = wide_config();
  set_dropouts(config, 1);
  EncoderClassifier model(config, 5);
  const TinyBatch batch = tiny_batch({6, 2, 30}, 19, 5);
  const Result result = train_step(model, batch);
  for (const double v : values_of(result.logits)) EXPECT_TRUE(std::isfinite(v));
  for (const Tensor& gradient : result.gradients) {
    for (const double v : values_of(gradient)) EXPECT_TRUE(std::isfinite(v));
  }
}

TEST(EncoderCapture, sees_attention_weights_and_named_activations) {
  class Sink : public CaptureSink {
   public:
    bool wants_attention() const override { return true; }
    void attention(const std::string& module, const Tensor& weights) override {
      maps.emplace_back(module, weights.clone());
    }
    void activation(const std::string& module, const Tensor&) override { names.push_back(module); }
    std::vector<std::pair<std::string, Tensor>> maps;
    std::vector<std::string> names;
  };
  const EncoderClassifier model(tiny_config(), 5);
  const std::vector<std::int64_t> lengths{6, 2};
  const TinyBatch batch = tiny_batch(lengths, 19, 5);
  Sink sink;
  Context context;
  context.layout = &batch.layout;
  context.capture = &sink;
  const Tensor captured = model.forward(context, batch.ids).value();
  // Weights are formed by another implementation than the one that never stores them.
  EXPECT_LE(relative_difference(captured, logits_of(model, batch.layout, batch.ids)), 1e-5);
  ASSERT_EQ(sink.maps.size(), 2U);
  EXPECT_EQ(sink.maps[1].first, "encoder.layers.1.attention");
  const std::vector<double> weights = values_of(sink.maps[0].second);
  ASSERT_EQ(weights.size(), 4U * (36 + 4));
  for (std::size_t row = 0; row < 24; ++row) {
    double sum = 0;
    for (std::size_t j = 0; j < 6; ++j) sum += weights[row * 6 + j];
    EXPECT_NEAR(sum, 1, 1e-6);
  }
  const std::vector<std::string> expected{"embeddings",
                                          "encoder.layers.0.attention",
                                          "encoder.layers.0.feed_forward",
                                          "encoder.layers.0",
                                          "encoder.layers.1.attention",
                                          "encoder.layers.1.feed_forward",
                                          "encoder.layers.1",
                                          "encoder",
                                          "pooled",
                                          "logits"};
  EXPECT_EQ(sink.names, expected);
}

TEST(EncoderInput, refuses_what_it_cannot_compute) {
  const EncoderClassifier model(tiny_config(), 5);
  const auto run = [&](const std::vector<std::int64_t>& lengths, std::int32_t id, std::size_t ids) {
    const RaggedLayout layout = RaggedLayout::from_lengths(lengths);
    Context context;
    context.layout = &layout;
    return model.forward(context, std::vector<std::int32_t>(ids, id));
  };
  try {
    run({3, 13}, 1, 16);
    FAIL() << "a text longer than the position table must be refused";
  } catch (const DataError& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("at most 12"), std::string::npos) << message;
    EXPECT_NE(message.find("13"), std::string::npos) << message;
  }
  EXPECT_NO_THROW(run({3, 12}, 1, 15));
  EXPECT_THROW(run({3, 0}, 1, 3), DataError);
  EXPECT_THROW(run({}, 1, 0), ShapeError);
  EXPECT_THROW(run({3}, 1, 4), ShapeError);
  EXPECT_THROW(run({3}, 19, 3), ArgumentError);
  EXPECT_THROW(run({3}, -1, 3), ArgumentError);
  Context without;
  EXPECT_THROW(model.forward(without, std::vector<std::int32_t>{1}), ArgumentError);
}

TEST(EncoderInput, positions_without_a_table_take_any_length) {
  for (EncoderConfig config : {tiny_modern(), tiny_config()}) {
    if (config.positions != PositionKind::kRope) config.positions = PositionKind::kNone;
    const EncoderClassifier model(config, 5);
    const TinyBatch batch = tiny_batch({40}, 19, 5);
    EXPECT_EQ(logits_of(model, batch.layout, batch.ids).dim(1), 5);
  }
}
