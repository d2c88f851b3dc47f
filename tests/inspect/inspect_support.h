// A small classifier with a tokenizer of characters.
#pragma once

#include <string>
#include <vector>

#include "qkv/tokenizer.h"

#include "inspect/trace.h"
#include "models/encoder_classifier.h"
#include "models/encoder_support.h"

namespace qkv::testing {

inline EncoderConfig traced_config() {
  EncoderConfig c = tiny_config();
  c.max_positions = 64;
  c.vocab_size = 60;
  c.labels = {"card", "order", "other"};
  return c;
}

struct TinyClassifier {
  TinyClassifier()
      : tokenizer(
            Tokenizer::train(std::vector<std::string>{"where is my card", "我的 card",
                                                      "<script>alert(1)</script>", "the order"},
                             {.kind = TokenizerKind::kChar, .vocab_size = 60, .min_frequency = 1})),
        model(traced_config(), 1) {}

  inspect::Trace trace(const std::string& text) const {
    return inspect::trace_text(model, tokenizer.encode(text), text);
  }

  Tokenizer tokenizer;
  EncoderClassifier model;
};

}  // namespace qkv::testing
