#include "models/transformer_config.h"

#include <fmt/core.h>

namespace qkv::inline v0 {
namespace {

void expect(std::vector<std::string>& faults, bool condition, const char* sentence,
            std::int64_t got) {
  if (!condition) faults.push_back(fmt::format("{}, got {}", sentence, got));
}

bool is_share(double p) { return p >= 0 && p <= 1; }

void check_sizes(const TransformerConfig& c, std::vector<std::string>& faults) {
  constexpr std::int64_t kLargest = std::int64_t{1} << 24;  // products of two fit easily
  const auto in_range = [&](const char* name, std::int64_t value, std::int64_t least) {
    if (value < least || value > kLargest)
      faults.push_back(fmt::format("{}: expected {} to {}, got {}", name, least, kLargest, value));
  };
  in_range("vocabulary size", c.vocab_size, 1);
  in_range("width", c.d_model, 1);
  in_range("number of layers", c.num_layers, 1);
  in_range("number of heads", c.num_heads, 1);
  in_range("number of key/value heads", c.num_kv_heads, 1);
  in_range("head size", c.head_size, 1);
  in_range("feed-forward width", c.d_ff, 0);
  in_range("number of positions", c.max_positions, 1);
  in_range("number of token types", c.type_vocab, 0);
  in_range("position offset", c.position_offset, 0);
  if (c.num_heads >= 1 && c.num_kv_heads >= 1 && c.num_heads % c.num_kv_heads != 0) {
    faults.push_back(
        fmt::format("number of heads: expected a multiple of the {} key/value heads, "
                    "got {}",
                    c.num_kv_heads, c.num_heads));
  }
}

void check_positions(const TransformerConfig& c, std::vector<std::string>& faults) {
  if (c.positions == PositionKind::kRope) {
    for (const ops::RopeOptions& rope : {c.rope, c.local_rope.value_or(c.rope)}) {
      if (!(rope.base > 1))
        faults.push_back(fmt::format("RoPE base: expected a number above 1, got {}", rope.base));
      const std::int64_t channels = rope.channels > 0 ? rope.channels : c.head_size;
      if (channels % 2 != 0 || channels > c.head_size) {
        faults.push_back(fmt::format(
            "rotated channels: expected an even number, at most the head size {}, got {}",
            c.head_size, channels));
      }
      if (!(rope.scaling.factor >= 1))
        faults.push_back(
            fmt::format("RoPE scaling factor: expected at least 1, got {}", rope.scaling.factor));
    }
  } else {
    expect(faults, c.positions != PositionKind::kLearned || c.max_positions > c.position_offset,
           "number of positions: expected more than the rows in front of the first token",
           c.max_positions);
  }
  expect(
      faults, c.relative_buckets == 0 || (c.relative_buckets >= 4 && c.relative_buckets % 2 == 0),
      "buckets of relative positions: expected an even number of at least 4", c.relative_buckets);
  expect(faults, c.windows.empty() || static_cast<std::int64_t>(c.windows.size()) == c.num_layers,
         "windows: expected one for each layer", static_cast<std::int64_t>(c.windows.size()));
  for (const std::int64_t window : c.windows)
    expect(faults, window >= 0, "windows: expected 0 or more", window);
}

}  // namespace

const char* head_kind_name(HeadKind kind) {
  switch (kind) {
    case HeadKind::kNone:
      return "none";
    case HeadKind::kMaskedLm:
      return "masked_lm";
    case HeadKind::kLm:
      return "lm";
    case HeadKind::kSequence:
      return "sequence_classification";
    case HeadKind::kTokens:
      return "token_classification";
    case HeadKind::kAnswer:
      return "question_answering";
  }
  return "unknown";
}

std::string TransformerConfig::layer_name(std::int64_t layer) const {
  return fmt::format("{}.layers.{}", stack_name(), layer);
}

std::optional<std::int64_t> TransformerConfig::position_limit() const {
  if (positions == PositionKind::kLearned || positions == PositionKind::kSinusoidal)
    return max_tokens();
  return std::nullopt;
}

nn::BlockConfig TransformerConfig::block(std::int64_t layer) const {
  nn::BlockConfig b;
  b.attention.d_model = d_model;
  b.attention.heads = num_heads;
  b.attention.kv_heads = num_kv_heads;
  b.attention.head_size = head_size;
  b.attention.layer = layer;
  b.attention.kind = attention;
  const std::int64_t reach = window(layer);
  if (causal) b.attention.mask = b.attention.mask & Mask::causal();
  if (reach > 0) b.attention.mask = b.attention.mask & Mask::window(reach);
  if (positions == PositionKind::kRope)
    b.attention.rope = reach > 0 ? local_rope.value_or(rope) : rope;
  if (head_norms) {
    b.attention.head_norm = norm;
    b.attention.head_norm->choice = NormChoice::kRms;
  }
  b.attention.scale = attention_scale;
  b.attention.softcap = attention_softcap;
  b.attention.dropout = attention_dropout;
  b.attention.bias = qkv_bias;
  b.attention.out_bias = out_bias;
  b.attention_norm = layer > 0 || first_attention_norm;
  b.feed_forward = {d_model, d_ff, activation, activation_dropout, feed_forward_bias};
  b.norm = norm;
  b.placement = placement;
  b.hidden_dropout = hidden_dropout;
  return b;
}

std::vector<std::string> TransformerConfig::faults() const {
  std::vector<std::string> faults;
  check_sizes(*this, faults);
  check_positions(*this, faults);
  if (!(norm.eps > 0))
    faults.push_back(fmt::format("norm eps: expected above 0, got {}", norm.eps));
  for (const double p :
       {attention_dropout, hidden_dropout, activation_dropout, embedding_dropout, head.dropout}) {
    if (!is_share(p)) faults.push_back(fmt::format("dropout: expected 0 to 1, got {}", p));
  }
  for (const std::optional<double>& cap : {attention_softcap, head.softcap}) {
    if (cap && !(*cap > 0))
      faults.push_back(fmt::format("softcap: expected above 0, got {}", *cap));
  }
  if (attention_scale && !(*attention_scale > 0))
    faults.push_back(fmt::format("attention scale: expected above 0, got {}", *attention_scale));
  if (head.kind == HeadKind::kSequence || head.kind == HeadKind::kTokens)
    expect(faults, head.num_labels() >= 1, "labels: expected at least one", head.num_labels());
  return faults;
}

}  // namespace qkv::inline v0
