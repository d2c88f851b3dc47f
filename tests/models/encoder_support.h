// Small encoders and batches for tests.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "base/random.h"
#include "models/encoder_classifier.h"

namespace qkv::testing {

struct TinyBatch {
  RaggedLayout layout;
  std::vector<std::int32_t> ids, labels;
};

inline TinyBatch tiny_batch(const std::vector<std::int64_t>& lengths, std::int64_t vocab,
                            std::int64_t classes, std::uint64_t seed = 1) {
  TinyBatch batch;
  batch.layout = RaggedLayout::from_lengths(lengths);
  Random random(seed);
  for (std::int64_t t = 0; t < batch.layout.tokens(); ++t) {
    batch.ids.push_back(static_cast<std::int32_t>(random.below(static_cast<std::uint64_t>(vocab))));
  }
  for (std::size_t b = 0; b < lengths.size(); ++b) {
    batch.labels.push_back(
        static_cast<std::int32_t>(random.below(static_cast<std::uint64_t>(classes))));
  }
  return batch;
}

// Width 16, 2 layers, 4 heads, 19 tokens, 12 positions, 5 classes: as tools/make_goldens.py. No
// dropout.
inline EncoderConfig tiny_config() {
  EncoderConfig c;
  c.d_model = 16;
  c.num_layers = 2;
  c.num_heads = 4;
  c.d_ff = 24;
  c.vocab_size = 19;
  c.max_positions = 12;
  c.labels = {"a", "b", "c", "d", "e"};
  c.attention_dropout = c.hidden_dropout = c.activation_dropout = c.embedding_dropout = 0;
  return c;
}

inline EncoderConfig tiny_bert() {
  EncoderConfig c = tiny_config();
  c.norm_placement = NormPlacement::kPost;
  c.pooling = ops::Pooling::kFirst;
  c.set_placement_defaults();
  return c;
}

inline EncoderConfig tiny_modern() {
  EncoderConfig c = tiny_config();
  c.num_kv_heads = 2;
  c.norm = NormChoice::kRms;
  c.activation = ops::Activation::kSwiglu;
  c.positions = PositionKind::kRope;
  c.bias = false;
  return c;
}

inline void set_dropouts(EncoderConfig& c, double p) {
  c.attention_dropout = c.hidden_dropout = c.activation_dropout = c.embedding_dropout = p;
}

// A named configuration, as the parameter of a test.
struct Form {
  std::string name;
  EncoderConfig config;
};
// NOLINTNEXTLINE(readability-identifier-naming): the name that gtest looks for.
inline void PrintTo(const Form& form, std::ostream* out) { *out << form.name; }

}  // namespace qkv::testing
