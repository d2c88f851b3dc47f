// What a model is made of: its positions, and the flow of one text through it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "inspect/trace.h"

namespace qkv::inline v0::inspect {

// The difference of two position codes. For sinusoidal codes its norm depends on the distance of
// the two alone, its direction does not.
struct PositionStep {
  std::int64_t from = 0, to = 0;
  double norm = 0;     // of code(to) - code(from)
  double product = 0;  // inner product of the two codes
};

struct PositionReport {
  std::string kind;  // "learned", "sinusoidal", "rope", "none"
  Tensor codes;  // [count, width]; rope: cos and sin of each angle, in pairs; undefined for none
  std::vector<PositionStep> steps;  // 5 to 10 and 95 to 100, where the table is that long
  std::optional<double> cosine;     // between the two differences
  std::string text() const;         // several lines
  Json to_json() const;
};
PositionReport position_report(const EncoderClassifier& model);

// One station of the data flow.
struct GraphNode {
  std::string name;     // module path, with a detail's name: "encoder.layers.0.attention.qkv"
  std::string what;     // "projection to queries, keys and values"
  std::string formula;  // "[T, C] x [3C, C]^T -> [T, 3C]"
  Shape shape;          // of the value, as it was in this run
  std::vector<std::string> weights;  // "encoder.layers.0.attention.qkv.weight [768, 256]"
};
// Stations of a traced run, in order; shapes are those of the run. The trace needs its activations.
std::vector<GraphNode> data_flow(const EncoderClassifier& model, const Trace& trace);
std::string graph_text(const std::vector<GraphNode>& nodes);
Json graph_json(const std::vector<GraphNode>& nodes);

}  // namespace qkv::inline v0::inspect
