// What a configuration says of the shapes of weights, for the layouts of Hugging Face folders.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "qkv/tensor.h"

#include "base/json.h"
#include "doctor/recorder.h"

namespace qkv::inline v0::doctor {

using NamedShapes = std::map<std::string, Shape>;

// 0: the configuration does not say.
struct ModelShape {
  std::int64_t width = 0, layers = 0, heads = 0, kv_heads = 0, head_size = 0, hidden = 0;
  std::int64_t vocab = 0, positions = 0;
};

// Reads BERT's, GPT-2's, Llama's and the engine's own words; contradictions become findings.
ModelShape read_model_shape(const Json& config, Recorder& record);

// Vocabulary, position table, missing layers, and the matrices whose shape follows.
void check_shapes(const ModelShape& shape, const NamedShapes& weights, Recorder& record);

}  // namespace qkv::inline v0::doctor
