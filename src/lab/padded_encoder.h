// The encoder classifier over padded batches, as much serving code writes it, with the two choices
// that such code gets wrong left open. For experiments alone: the engine itself packs texts without
// padding and has no such choices.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "autograd/context.h"
#include "models/encoder_classifier.h"
#include "text/dataset.h"

namespace qkv::inline v0::lab {

struct PaddedBatch {
  RaggedLayout layout;                  // B sequences of one length N, padding included
  std::vector<std::int32_t> ids;        // [B N]
  std::vector<std::int64_t> lengths;    // real tokens of each
  RaggedLayout packed;                  // the real tokens alone
  std::vector<std::int32_t> real_rows;  // rows of the padded tokens that are real, [T]
};
// Pads every text to the longest.
PaddedBatch pad_batch(const std::vector<const Sample*>& samples, std::int32_t pad_id);

struct PaddedAttention {
  // Factor of q k^T. Right is 1 / sqrt(head size).
  double attention_scale = 1;
  // What takes the place of the scores of padding. Right is -inf: such keys are skipped. Any finite
  // number makes padding an ordinary key with that score.
  double mask_fill = -INFINITY;
};

// Uses the weights of `model`, which must outlive it. Pre-LN and learned or rotary positions only
// (UnsupportedError). Gradients reach the model's parameters when the context records.
class PaddedEncoder {
 public:
  explicit PaddedEncoder(const EncoderClassifier& model);
  double right_scale() const;
  // [B, V]. Sets context.layout for its own duration.
  Var forward(Context& context, const PaddedBatch& batch, const PaddedAttention& attention) const;

 private:
  Var parameter(const std::string& name) const;
  Var embed(Context& context, const PaddedBatch& batch) const;
  Var attend(Context& context, const PaddedBatch& batch, const PaddedAttention& attention,
             const std::string& layer, const Var& x) const;
  Var feed_forward(Context& context, const std::string& layer, const Var& x) const;
  Var norm(Context& context, const std::string& name, const Var& x) const;

  const EncoderClassifier& model_;
};

}  // namespace qkv::inline v0::lab
