#include "models/config.h"

#include <algorithm>
#include <cmath>

#include <fmt/core.h>

#include "base/check.h"

namespace qkv::inline v0 {
namespace {

template <class E>
struct Named {
  E value;
  const char* name;
};
constexpr Named<NormChoice> kNorms[] = {
    {NormChoice::kLayer, "layer"}, {NormChoice::kRms, "rms"}, {NormChoice::kNone, "none"}};
constexpr Named<NormPlacement> kPlacements[] = {{NormPlacement::kPre, "pre"},
                                                {NormPlacement::kPost, "post"},
                                                {NormPlacement::kSandwich, "sandwich"}};
constexpr Named<PositionKind> kPositions[] = {{PositionKind::kSinusoidal, "sinusoidal"},
                                              {PositionKind::kLearned, "learned"},
                                              {PositionKind::kRope, "rope"},
                                              {PositionKind::kNone, "none"}};
constexpr Named<AttentionKind> kAttentions[] = {{AttentionKind::kAuto, "auto"},
                                                {AttentionKind::kNaive, "naive"},
                                                {AttentionKind::kFlash, "flash"},
                                                {AttentionKind::kWindow, "window"},
                                                {AttentionKind::kLinear, "linear"}};

template <class E, std::size_t N>
const char* name_of(const Named<E> (&names)[N], E value) {
  for (const Named<E>& n : names) {
    if (n.value == value) return n.name;
  }
  return "unknown";
}

template <class E, std::size_t N>
E parse(const Named<E> (&names)[N], const char* key, std::string_view text) {
  std::string known;
  for (const Named<E>& n : names) {
    if (text == n.name) return n.value;
    known += fmt::format("{}\"{}\"", known.empty() ? "" : ", ", n.name);
  }
  fail<ConfigError>("config", "{}: expected one of {}, got \"{}\"", key, known, text);
}

}  // namespace

const char* norm_choice_name(NormChoice choice) { return name_of(kNorms, choice); }
const char* norm_placement_name(NormPlacement placement) { return name_of(kPlacements, placement); }
const char* position_kind_name(PositionKind kind) { return name_of(kPositions, kind); }
const char* attention_kind_name(AttentionKind kind) { return name_of(kAttentions, kind); }
NormChoice parse_norm_choice(std::string_view name) { return parse(kNorms, "norm", name); }
NormPlacement parse_norm_placement(std::string_view name) {
  return parse(kPlacements, "norm_placement", name);
}
PositionKind parse_position_kind(std::string_view name) {
  return parse(kPositions, "positions", name);
}
AttentionKind parse_attention_kind(std::string_view name) {
  return parse(kAttentions, "attention", name);
}

void EncoderConfig::set_placement_defaults() {
  embedding_norm = norm_placement == NormPlacement::kPost && norm != NormChoice::kNone;
  pooler = norm_placement == NormPlacement::kPost && pooling == ops::Pooling::kFirst;
}

std::optional<std::int64_t> EncoderConfig::position_limit() const {
  if (positions == PositionKind::kLearned || positions == PositionKind::kSinusoidal)
    return max_positions;
  return std::nullopt;
}

bool EncoderConfig::is_bert() const {
  const bool plain_attention =
      attention != AttentionKind::kWindow && attention != AttentionKind::kLinear;
  const bool known_activation =
      activation == ops::Activation::kGelu || activation == ops::Activation::kGeluTanh ||
      activation == ops::Activation::kRelu || activation == ops::Activation::kSilu;
  return norm == NormChoice::kLayer && norm_placement == NormPlacement::kPost && embedding_norm &&
         pooler && pooling == ops::Pooling::kFirst && positions == PositionKind::kLearned &&
         plain_attention && known_activation && bias && kv_heads() == num_heads && d_ff > 0;
}

std::vector<std::string> EncoderConfig::faults() const {
  std::vector<std::string> faults;
  const auto at_least = [&](const char* key, std::int64_t value, std::int64_t least) {
    if (value < least)
      faults.push_back(fmt::format("{}: expected at least {}, got {}", key, least, value));
    return value >= least;
  };
  const auto share = [&](const char* key, double p) {
    if (!(p >= 0 && p <= 1))
      faults.push_back(fmt::format("{}: expected a number from 0 to 1, got {}", key, p));
  };
  const auto fault = [&](bool bad, std::string text) {
    if (bad) faults.push_back(std::move(text));
  };
  constexpr std::int64_t kMax = std::int64_t{1}
                                << 24;  // products of two extents stay far from overflow
  for (const auto& [key, value] : {std::pair{"d_model", d_model},
                                   {"num_layers", num_layers},
                                   {"num_heads", num_heads},
                                   {"num_kv_heads", num_kv_heads},
                                   {"d_ff", d_ff},
                                   {"vocab_size", vocab_size},
                                   {"window", window}}) {
    fault(value > kMax, fmt::format("{}: expected at most {}, got {}", key, kMax, value));
  }
  constexpr std::int64_t kMaxPositions = std::int64_t{1} << 20;
  fault(max_positions > kMaxPositions,
        fmt::format("max_positions: expected at most {}, got {}", kMaxPositions, max_positions));
  const bool width_ok = at_least("d_model", d_model, 1);
  const bool heads_ok = at_least("num_heads", num_heads, 1);
  const bool kv_ok = at_least("num_kv_heads", num_kv_heads, 0);
  at_least("num_layers", num_layers, 1);
  at_least("d_ff", d_ff, 0);
  at_least("vocab_size", vocab_size, 1);
  at_least("max_positions", max_positions, 1);
  if (width_ok && heads_ok) {
    fault(d_model % num_heads != 0,
          fmt::format("d_model: expected a multiple of num_heads {}, got {}", num_heads, d_model));
    fault(positions == PositionKind::kRope && d_model % num_heads == 0 && head_size() % 2 != 0,
          fmt::format(
              "positions: expected an even head size for \"rope\", got d_model / num_heads = {}",
              head_size()));
  }
  if (heads_ok && kv_ok) {
    fault(num_heads % kv_heads() != 0,
          fmt::format("num_kv_heads: expected a divisor of num_heads {}, got {}", num_heads,
                      num_kv_heads));
  }
  if (attention == AttentionKind::kWindow) {
    at_least("window", window, 1);
  } else {
    fault(window != 0,
          fmt::format("window: expected it with attention = \"window\" only, got {} with \"{}\"",
                      window, attention_kind_name(attention)));
  }
  share("attention_dropout", attention_dropout);
  share("hidden_dropout", hidden_dropout);
  share("activation_dropout", activation_dropout);
  share("embedding_dropout", embedding_dropout);
  fault(!(norm_eps > 0 && std::isfinite(norm_eps)),
        fmt::format("norm_eps: expected a number above 0, got {}", norm_eps));
  fault(!(rope_base > 1 && std::isfinite(rope_base)),
        fmt::format("rope_base: expected a number above 1, got {}", rope_base));
  fault(embedding_norm && norm == NormChoice::kNone,
        "embedding_norm: expected false with norm = \"none\", got true");
  fault(labels.size() < 2,
        fmt::format("labels: expected at least 2 classes, got {}", labels.size()));
  std::vector<std::string> sorted = labels;
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end())
    faults.push_back(fmt::format("labels: expected different names, got \"{}\" twice", *twice));
  return faults;
}

}  // namespace qkv::inline v0
