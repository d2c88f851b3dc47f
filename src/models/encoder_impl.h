// Inside of EncoderClassifier, shared by its forward pass and its files.
#pragma once

#include "models/encoder_classifier.h"
#include "models/transformer.h"

namespace qkv::inline v0 {

// The trunk that computes what an EncoderConfig describes. ConfigError with all faults.
TransformerConfig transformer_config(const EncoderConfig& config);

struct EncoderClassifier::Impl {
  EncoderConfig config;
  Transformer transformer;
  Json published = {};  // config.json of a published family; null: one of our own forms
};

// The part of a published model's configuration that an EncoderConfig can say.
EncoderConfig encoder_config(const TransformerConfig& config);

}  // namespace qkv::inline v0
