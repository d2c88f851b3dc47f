// Rotary positions of config.json: rope_parameters as files have it today, rope_theta and
// rope_scaling as older ones do.
#include <algorithm>

#include "base/check.h"
#include "models/families/family.h"

namespace qkv::inline v0 {
namespace {

using ops::RopeScalingKind;

RopeScalingKind scaling_kind(const JsonReader& scaling) {
  const char* key = scaling.absent("rope_type") ? "type" : "rope_type";
  if (scaling.absent(key)) return RopeScalingKind::kNone;
  const std::string& name = scaling.text(key);
  if (name == "default") return RopeScalingKind::kNone;
  if (name == "linear") return RopeScalingKind::kLinear;
  if (name == "dynamic") return RopeScalingKind::kDynamic;
  if (name == "yarn") return RopeScalingKind::kYarn;
  if (name == "llama3") return RopeScalingKind::kLlama3;
  fail<ModelError>("config.json",
                   "{}: expected one of \"default\", \"linear\", \"dynamic\", \"yarn\", "
                   "\"llama3\", got \"{}\"",
                   key, excerpt(name));
}

double yarn_magnitude_of(const JsonReader& scaling, double factor) {
  if (!scaling.absent("attention_factor")) return scaling.number("attention_factor");
  const double above = scaling.number_or("mscale", 0),
               below = scaling.number_or("mscale_all_dim", 0);
  if (above == 0 || below == 0) return ops::yarn_magnitude(factor);
  const auto magnitude = [&](double m) {
    return factor <= 1 ? 1 : m * (ops::yarn_magnitude(factor) - 1) + 1;
  };
  return magnitude(above) / magnitude(below);
}

// `positions`: max_position_embeddings.
ops::RopeScaling read_scaling(const JsonReader& scaling, std::int64_t positions) {
  ops::RopeScaling s;
  s.kind = scaling_kind(scaling);
  if (s.kind == RopeScalingKind::kNone) return s;
  s.positions = scaling.integer_or("original_max_position_embeddings", positions);
  // YaRN's factor may follow from the two lengths.
  s.factor = s.kind == RopeScalingKind::kYarn && scaling.absent("factor")
                 ? static_cast<double>(positions) / static_cast<double>(s.positions)
                 : scaling.number("factor");
  if (s.kind == RopeScalingKind::kDynamic) s.positions = positions;
  require<ModelError>(s.positions >= 1, "config.json",
                      "original_max_position_embeddings: expected at least 1, got {}", s.positions);
  if (s.kind == RopeScalingKind::kYarn) {
    s.magnitude = yarn_magnitude_of(scaling, s.factor);
    s.beta_fast = scaling.number_or("beta_fast", 32);
    s.beta_slow = scaling.number_or("beta_slow", 1);
    s.whole_channels = scaling.boolean_or("truncate", true);
  }
  if (s.kind == RopeScalingKind::kLlama3) {
    require<ModelError>(!scaling.absent("original_max_position_embeddings"), "config.json",
                        "original_max_position_embeddings: expected a number for {}, got none",
                        "llama3");
    s.low_frequency = scaling.number("low_freq_factor");
    s.high_frequency = scaling.number("high_freq_factor");
    require<ModelError>(s.high_frequency > s.low_frequency, "config.json",
                        "high_freq_factor: expected more than low_freq_factor {}, got {}",
                        s.low_frequency, s.high_frequency);
  }
  return s;
}

}  // namespace

const Json* rope_parameters(const JsonReader& reader) {
  return reader.absent("rope_parameters") ? nullptr : &reader.at("rope_parameters");
}

ops::RopeOptions read_rope(const JsonReader& reader, const Json* parameters, double default_base) {
  ops::RopeOptions rope;
  rope.base = reader.number_or("rope_theta", default_base);
  const std::int64_t positions = reader.integer("max_position_embeddings");
  double share = reader.number_or("partial_rotary_factor", 1);
  const Json* scaling = parameters;
  if (scaling == nullptr && !reader.absent("rope_scaling")) scaling = &reader.at("rope_scaling");
  if (scaling != nullptr) {
    const JsonReader s(*scaling);
    rope.base = s.number_or("rope_theta", rope.base);
    share = s.number_or("partial_rotary_factor", share);
    rope.scaling = read_scaling(s, positions);
  }
  if (share != 1) {
    const std::int64_t head = reader.integer_or(
        "head_dim", reader.integer("hidden_size") /
                        std::max<std::int64_t>(1, reader.integer("num_attention_heads")));
    rope.channels = static_cast<std::int64_t>(static_cast<double>(head) * share);
    require<ModelError>(
        rope.channels >= 2, "config.json",
        "partial_rotary_factor: expected at least two rotated channels of {}, got {}", head,
        rope.channels);
  }
  return rope;
}

}  // namespace qkv::inline v0
