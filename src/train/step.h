// One training step of a classifier: forward, loss and backward over micro-batches.
#pragma once

#include <cstdint>
#include <vector>

#include "models/encoder_classifier.h"
#include "ops/softmax.h"
#include "text/dataset.h"

namespace qkv::inline v0::train {

struct StepSums {
  double loss_sum = 0;  // over the counted targets
  std::int64_t counted = 0, right = 0, tokens = 0;
  double flops = 0;  // arithmetic of the model's products, forward and backward
};

// Adds the gradients of the summed loss of one micro-batch to the model's; the first one of a step
// overwrites. The mean over all of the step's targets is taken later, by the optimiser's
// gradient_scale 1 / counted.
StepSums accumulate_gradients(const EncoderClassifier& model,
                              const std::vector<const Sample*>& members,
                              const ops::CrossEntropyOptions& loss, std::uint64_t seed,
                              std::int64_t step);

// Multiplications and additions of the products and of attention: of the forward pass, and of
// forward and backward (twice and 2.5 times the forward).
double encoding_flops(const EncoderConfig& config, const RaggedLayout& layout);
double training_flops(const EncoderConfig& config, const RaggedLayout& layout);

}  // namespace qkv::inline v0::train
