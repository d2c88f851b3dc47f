// One text through a model, with everything that passes by kept.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "qkv/tensor.h"
#include "qkv/tokenizer.h"

#include "base/json.h"
#include "inspect/figures.h"
#include "models/encoder_classifier.h"

namespace qkv::inline v0::inspect {

using NamedTensor = std::pair<std::string, Tensor>;

struct Trace {
  std::string text;
  std::vector<std::int32_t> ids;
  std::vector<std::string> tokens;  // pieces of the vocabulary
  // The text that each token stands for; empty for added specials, an ellipsis for a further token
  // of the same character.
  std::vector<std::string> words;
  std::string label;  // most probable
  double score = 0;   // its probability
  // Weights of each layer [H, N, N] by module; empty for linear attention, which has none.
  std::vector<NamedTensor> attention;
  // In the order of computation; names are module paths.
  std::vector<NamedTensor> activations;

  std::int64_t length() const { return static_cast<std::int64_t>(ids.size()); }
  std::int64_t layers() const { return static_cast<std::int64_t>(attention.size()); }
  std::int64_t heads() const { return attention.empty() ? 0 : attention[0].second.dim(0); }
  // Weights [N, N] of one head.
  Tensor head(std::int64_t layer, std::int64_t head) const;
  // The same for heads counted through all layers.
  struct Place {
    std::int64_t layer = 0, head = 0;
  };
  Place place(std::int64_t index) const;
  Tensor head(std::int64_t index) const { return head(place(index).layer, place(index).head); }
};

// What to keep: attention costs layers * H * N * N floats.
struct TraceOptions {
  bool attention = true, activations = true;
};

// `encoding` as the tokenizer gave it for `text`, pieces included. The weights are those of the
// computation itself. DataError for text without tokens or beyond the position table; NumericError
// for a logit that is not finite.
Trace trace_text(const EncoderClassifier& model, const Encoding& encoding, std::string_view text,
                 const TraceOptions& options = {});

// {"text", "layers", "heads", "tokens", "words", "attention": [layer][head][query][key], "figures":
// [{"layer", "head", ...}], "label", "score"} as one line. Written without a tree in memory: the
// weights are many.
std::string trace_json(const Trace& trace);

// Figures of every head, layer by layer.
std::vector<HeadFigures> all_figures(const Trace& trace);

}  // namespace qkv::inline v0::inspect
