// Finds where the first value that is not finite came from, by doing the step again slowly.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/encoder_classifier.h"
#include "ops/softmax.h"
#include "text/dataset.h"

namespace qkv::inline v0::train {

struct NonFinite {
  std::string module;        // "encoder.layers.2.attention"
  std::string pass;          // "weights", "forward", "loss" or "backward"
  std::int64_t sample = -1;  // index in the training data; -1 for weights
  std::string str() const;   // "in the forward pass of encoder.layers.2.attention, sample 17"
};

// Looks at the weights, then at each sample of the step on its own with the dropout of that step:
// the first module whose output, the loss, or the first op whose gradient is not finite. Nothing if
// every sample is fine alone (an overflow of the sum). Gradients of the model are left cleared.
std::optional<NonFinite> find_non_finite_step(const EncoderClassifier& model,
                                              const Context& context,
                                              const std::vector<const Sample*>& samples,
                                              const ops::CrossEntropyOptions& loss);

}  // namespace qkv::inline v0::train
