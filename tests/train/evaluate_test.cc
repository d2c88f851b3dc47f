// Evaluation over many texts, and the search for values that are not finite.
#include "train/evaluate.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "qkv/error.h"

#include "ops/softmax.h"
#include "train/diagnose.h"

using namespace qkv;
using namespace qkv::train;

namespace {

EncoderConfig tiny_shape() {
  EncoderConfig shape;
  shape.d_model = 16;
  shape.num_layers = 2;
  shape.num_heads = 2;
  shape.d_ff = 32;
  shape.max_positions = 40;
  shape.vocab_size = 20;
  shape.labels = {"a", "b", "c"};
  return shape;
}

std::vector<Sample> tiny_samples(int count) {
  std::vector<Sample> samples(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < samples.size(); ++i) {
    samples[i].ids.resize(1 + i * 7 % 40);
    for (std::size_t t = 0; t < samples[i].ids.size(); ++t) {
      samples[i].ids[t] = static_cast<std::int32_t>((i * 3 + t * t) % 20);
    }
    samples[i].label = static_cast<std::int32_t>(i % 3);
    samples[i].index = static_cast<std::int64_t>(i);
  }
  return samples;
}

void fill(EncoderClassifier& model, const std::string& name, float value) {
  model.module().find(name)->var.value().fill(value);
  model.module().bump_version();
}

std::optional<NonFinite> search(const EncoderClassifier& model,
                                const std::vector<Sample>& samples) {
  Context context;
  context.training = true;
  context.step = 3;
  std::vector<const Sample*> members;
  for (const Sample& sample : samples) members.push_back(&sample);
  return find_non_finite_step(model, context, members, {});
}

}  // namespace

TEST(Evaluate, agrees_with_one_text_at_a_time) {
  const EncoderClassifier model(tiny_shape(), 1);
  const std::vector<Sample> samples = tiny_samples(50);
  const Evaluation result = evaluate(model, samples, 64);
  double loss = 0;
  std::int64_t right = 0;
  for (const Sample& sample : samples) {
    const TokenBatch batch = make_batch({&sample});
    Context context;
    context.layout = &batch.layout;
    const auto one =
        ops::cross_entropy(model.forward(context, batch.ids).value(), batch.labels, {}, false);
    loss += one.loss_sum;
    right += one.correct;
  }
  EXPECT_NEAR(result.loss, loss / 50, 1e-5);
  EXPECT_EQ(result.n(), 50);
  EXPECT_DOUBLE_EQ(result.confusion.accuracy(), static_cast<double>(right) / 50);
}

TEST(Evaluate, does_not_depend_on_the_order_of_texts) {
  const EncoderClassifier model(tiny_shape(), 1);
  std::vector<Sample> samples = tiny_samples(40);
  const Evaluation forward = evaluate(model, samples, 128);
  std::reverse(samples.begin(), samples.end());
  const Evaluation backward = evaluate(model, samples, 128);
  EXPECT_NEAR(forward.loss, backward.loss, 1e-6);
  EXPECT_EQ(forward.confusion.accuracy(), backward.confusion.accuracy());
}

TEST(Evaluate, buckets_of_length_hold_every_text_once) {
  const EncoderClassifier model(tiny_shape(), 1);
  const std::vector<Sample> samples = tiny_samples(60);
  std::int64_t total = 0, previous = 0;
  for (const LengthBucket& bucket : evaluate(model, samples).buckets) {
    EXPECT_EQ(bucket.from, previous + 1);
    const auto n = std::count_if(samples.begin(), samples.end(), [&](const Sample& s) {
      const auto length = static_cast<std::int64_t>(s.ids.size());
      return length >= bucket.from && length <= bucket.to;
    });
    EXPECT_EQ(bucket.n, n);
    total += bucket.n;
    previous = bucket.to;
  }
  EXPECT_EQ(total, 60);
}

TEST(Evaluate, nothing_to_evaluate_is_zero_and_not_nan) {
  const Evaluation result = evaluate(EncoderClassifier(tiny_shape(), 1), {});
  EXPECT_EQ(result.n(), 0);
  EXPECT_EQ(result.loss, 0);
}

TEST(Evaluate, logits_that_are_not_finite_are_an_error) {
  EncoderClassifier model(tiny_shape(), 1);
  fill(model, "classifier.weight", std::numeric_limits<float>::max());
  EXPECT_THROW(evaluate(model, tiny_samples(3)), NumericError);
}

TEST(Softmax, of_large_logits_sums_to_one) {
  const float logits[] = {1000, 999, -1000};
  const std::vector<double> p = softmax_of(logits);
  EXPECT_NEAR(p[0], 1 / (1 + std::exp(-1.0)), 1e-12);
  EXPECT_NEAR(p[0] + p[1] + p[2], 1, 1e-15);
  EXPECT_EQ(p[2], 0);
}

TEST(Diagnose, says_nothing_about_a_sound_model) {
  const EncoderClassifier model(tiny_shape(), 1);
  EXPECT_FALSE(search(model, tiny_samples(5)));
  model.module().for_each([](const nn::Parameter& p) { EXPECT_FALSE(p.var.has_grad()); });
}

TEST(Diagnose, names_damaged_weights) {
  EncoderClassifier model(tiny_shape(), 1);
  fill(model, "encoder.layers.1.feed_forward.up.weight", std::numeric_limits<float>::quiet_NaN());
  const auto found = search(model, tiny_samples(5));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->pass, "weights");
  EXPECT_EQ(found->module, "encoder.layers.1.feed_forward.up.weight");
}

TEST(Diagnose, names_the_module_and_the_sample_of_an_overflow_forward) {
  EncoderClassifier model(tiny_shape(), 1);
  // Token 19 alone overflows, and only one sample has it.
  std::vector<Sample> samples = tiny_samples(6);
  for (Sample& sample : samples) std::replace(sample.ids.begin(), sample.ids.end(), 19, 0);
  samples[4].ids[0] = 19;
  const Tensor table = model.module().find("embeddings.token.weight")->var.value();
  table.select(0, 19).fill(std::numeric_limits<float>::max());
  model.module().bump_version();
  const auto found = search(model, samples);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->pass, "forward");
  EXPECT_EQ(found->sample, 4);
  EXPECT_FALSE(found->module.empty());
  EXPECT_NE(found->str().find("sample 4"), std::string::npos);
}
