// A classifier over many texts: logits, and the figures of an evaluation.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "metrics/classification.h"
#include "models/encoder_classifier.h"
#include "text/dataset.h"

namespace qkv::inline v0::train {

// Calls `sink(i, logits)` once for each sample, batch by batch in order of length. NumericError for
// a logit that is not finite, naming the sample.
using LogitsSink = std::function<void(std::size_t sample, std::span<const float> logits)>;
void for_each_logits(const EncoderClassifier& model, const std::vector<Sample>& samples,
                     std::int64_t batch_tokens, const LogitsSink& sink);

struct LengthBucket {
  std::int64_t from = 0, to = 0;  // tokens, both included
  std::int64_t n = 0, right = 0;
};

struct Evaluation {
  metrics::Confusion confusion;
  double loss = 0;  // mean cross-entropy, without smoothing
  std::vector<LengthBucket>
      buckets;  // by powers of two: 1-8, 9-16, 17-32, ...; only those that occur
  std::int64_t n() const { return confusion.total(); }
};
// Predicted class: the largest logit, the lowest index on ties. Samples need labels in [0, number
// of labels).
Evaluation evaluate(const EncoderClassifier& model, const std::vector<Sample>& samples,
                    std::int64_t batch_tokens = 4096);

// Probabilities of logits, in double.
std::vector<double> softmax_of(std::span<const float> logits);

}  // namespace qkv::inline v0::train
