// Positions inside the model: tables by hand (fault B24), and what happens at their end (B22).
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "qkv/error.h"

#include "models/encoder_support.h"
#include "ops/embedding.h"
#include "ops/rope.h"
#include "support/tensors.h"

using namespace qkv;
using namespace qkv::testing;

namespace {

class EmbeddingSink : public CaptureSink {
 public:
  void activation(const std::string& module, const Tensor& value) override {
    if (module == "embeddings") embeddings = value.clone();
  }
  Tensor embeddings;
};

}  // namespace

TEST(Positions, b24_sinusoidal_codes_are_added_to_scaled_tokens) {
  EncoderConfig config = tiny_config();
  config.d_model = 4;
  config.num_heads = 2;
  config.positions = PositionKind::kSinusoidal;
  EncoderClassifier model(config, 5);
  model.module().find("embeddings.token.weight")->var.value().fill(0.5);
  const std::vector<std::int64_t> lengths{2};
  const RaggedLayout layout = RaggedLayout::from_lengths(lengths);
  EmbeddingSink sink;
  Context context;
  context.layout = &layout;
  context.capture = &sink;
  model.forward(context, std::vector<std::int32_t>{3, 4});
  const std::vector<double> codes{0, 1, 0, 1, 0.841471, 0.540302, 0.010000, 0.999950};
  const std::vector<double> seen = values_of(sink.embeddings);
  for (std::size_t i = 0; i < codes.size(); ++i)
    EXPECT_NEAR(seen[i], codes[i] + 0.5 * 2, 2e-6) << i;  // scale sqrt(4)
}

TEST(Positions, b24_rotary_scores_depend_on_the_distance_alone) {
  // Shifting all positions of a text leaves a rope model's output in place; a learned table does
  // not.
  EncoderConfig config = tiny_modern();
  const std::vector<std::int64_t> lengths{5};
  const TinyBatch batch = tiny_batch(lengths, 19, 5);
  RaggedLayout shifted = batch.layout;
  for (std::int32_t& p : shifted.positions) p += 3;
  const auto difference = [&](const EncoderConfig& c) {
    const EncoderClassifier model(c, 5, DType::kFloat64);
    Context a, b;
    a.layout = &batch.layout;
    b.layout = &shifted;
    return relative_difference(model.forward(b, batch.ids).value(),
                               model.forward(a, batch.ids).value());
  };
  EXPECT_LE(difference(config), 1e-12);
  config.positions = PositionKind::kLearned;
  EXPECT_GE(difference(config), 1e-3);
}

TEST(Positions, b22_a_text_may_fill_the_table_and_no_more) {
  for (const PositionKind kind : {PositionKind::kLearned, PositionKind::kSinusoidal}) {
    EncoderConfig config = tiny_config();
    config.max_positions = 16;
    config.positions = kind;
    const EncoderClassifier model(config, 5);
    const auto logits = [&](const std::vector<std::int64_t>& lengths, std::int32_t shift = 0) {
      TinyBatch batch = tiny_batch(lengths, 19, 5);
      for (std::int32_t& p : batch.layout.positions) p += shift;
      Context context;
      context.layout = &batch.layout;
      return model.forward(context, batch.ids).value();
    };
    const Tensor full = logits({16, 3});
    for (const double v : values_of(full)) EXPECT_TRUE(std::isfinite(v));
    EXPECT_NO_THROW(logits({1}, 15));  // the last row of the table
    EXPECT_THROW(logits({1}, 16), DataError);
    EXPECT_THROW(logits({15}, 2), DataError);
    EXPECT_THROW(logits({0}), DataError);
    try {
      logits({3, 17});
      FAIL() << "a text of 17 tokens was taken";
    } catch (const DataError& error) {
      EXPECT_NE(std::string(error.what()).find("at most 16"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("one of 17"), std::string::npos) << error.what();
    }
    EXPECT_TRUE(same_bits(logits({16, 3}), full));  // a refused text leaves nothing behind
  }
  EncoderConfig rotary = tiny_modern();  // no table, no end
  rotary.max_positions = 16;
  const EncoderClassifier model(rotary, 5);
  const TinyBatch batch = tiny_batch({17}, 19, 5);
  Context context;
  context.layout = &batch.layout;
  for (const double v : values_of(model.forward(context, batch.ids).value()))
    EXPECT_TRUE(std::isfinite(v));
}
