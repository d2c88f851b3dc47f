#include "doctor/shape_rules.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/excerpt.h"

namespace qkv::inline v0::doctor {
namespace {

// The first of the keys that is there. Anything but a count is a finding.
std::int64_t count_of(const Json& config, std::initializer_list<const char*> keys, Recorder& record,
                      std::int64_t least = 1) {
  for (const char* key : keys) {
    const Json* value = config.find(key);
    if (value == nullptr || value->is_null()) continue;
    if (value->is_int() && value->as_int() >= least) return value->as_int();
    record.error("config", std::string("config.json: ") + key,
                 {{"expected at least", least}, {"got", excerpt(value->dump())}});
    return 0;
  }
  return 0;
}

bool ends_with_any(std::string_view name, std::initializer_list<const char*> ends) {
  return std::any_of(ends.begin(), ends.end(), [&](const char* end) {
    const std::string_view tail = end;
    if (!name.ends_with(tail)) return false;
    const std::size_t before = name.size() - tail.size();
    return before == 0 || name[before - 1] == '.';
  });
}

std::optional<std::pair<std::string, Shape>> find_weight(const NamedShapes& weights,
                                                         std::initializer_list<const char*> ends) {
  for (const auto& [name, shape] : weights)
    if (ends_with_any(name, ends)) return std::pair(name, shape);
  return std::nullopt;
}

// "encoder.layer.3.attention" -> 3, for the words that number layers.
std::optional<std::int64_t> layer_of(std::string_view name) {
  for (const std::string_view word : {".layers.", ".layer.", ".h.", "h.", "layers."}) {
    const std::size_t at = name.find(word);
    if (at == std::string_view::npos || (at > 0 && word[0] != '.')) continue;
    std::int64_t number = 0;
    std::size_t i = at + word.size();
    const std::size_t first = i;
    for (; i < name.size() && name[i] >= '0' && name[i] <= '9' && i - first < 6; ++i)
      number = 10 * number + (name[i] - '0');
    if (i > first && i < name.size() && name[i] == '.') return number;
  }
  return std::nullopt;
}

void check_table(const NamedShapes& weights, std::initializer_list<const char*> ends,
                 std::int64_t rows, std::int64_t width, const char* rule, const char* key,
                 Recorder& record) {
  const auto table = find_weight(weights, ends);
  if (!table || table->second.rank() != 2) return;
  if (rows > 0 && table->second[0] != rows) {
    record.error(rule, table->first, {{"rows", table->second[0]}, {key, rows}});
  } else if (width > 0 && table->second[1] != width) {
    record.error(
        "weights-shape", table->first,
        {{"expected", Shape{table->second[0], width}.str()}, {"got", table->second.str()}});
  }
}

struct MatrixRule {
  const char* end;
  std::int64_t rows, columns;
};

std::vector<MatrixRule> matrix_rules(const ModelShape& s) {
  const std::int64_t q = s.heads * s.head_size, kv = s.kv_heads * s.head_size;
  return {
      // BERT
      {"attention.self.query.weight", q, s.width},
      {"attention.self.key.weight", q, s.width},
      {"attention.self.value.weight", q, s.width},
      {"attention.output.dense.weight", s.width, q},
      {"intermediate.dense.weight", s.hidden, s.width},
      // Llama
      {"self_attn.q_proj.weight", q, s.width},
      {"self_attn.k_proj.weight", kv, s.width},
      {"self_attn.v_proj.weight", kv, s.width},
      {"self_attn.o_proj.weight", s.width, q},
      {"mlp.gate_proj.weight", s.hidden, s.width},
      {"mlp.up_proj.weight", s.hidden, s.width},
      {"mlp.down_proj.weight", s.width, s.hidden},
      // GPT-2: [in, out]
      {"attn.c_attn.weight", s.width, 3 * s.width},
      {"attn.c_proj.weight", s.width, s.width},
      {"mlp.c_fc.weight", s.width, s.hidden},
      {"mlp.c_proj.weight", s.hidden, s.width},
      // the engine's own
      {"attention.qkv.weight", q + 2 * kv, s.width},
      {"attention.out.weight", s.width, q},
      {"feed_forward.down.weight", s.width, s.hidden},
  };
}

}  // namespace

ModelShape read_model_shape(const Json& config, Recorder& record) {
  ModelShape s;
  s.width = count_of(config, {"hidden_size", "d_model", "n_embd"}, record);
  s.layers = count_of(config, {"num_hidden_layers", "num_layers", "n_layer"}, record);
  s.heads = count_of(config, {"num_attention_heads", "num_heads", "n_head"}, record);
  s.kv_heads = count_of(config, {"num_key_value_heads", "num_kv_heads"}, record);
  s.head_size = count_of(config, {"head_dim"}, record);
  s.hidden = count_of(config, {"intermediate_size", "d_ff", "n_inner"}, record, 0);
  s.vocab = count_of(config, {"vocab_size"}, record);
  s.positions =
      count_of(config, {"max_position_embeddings", "max_positions", "n_positions"}, record);
  if (s.kv_heads == 0) s.kv_heads = s.heads;
  const Json* type = config.find("model_type");
  if (s.hidden == 0 && type != nullptr && *type == Json("gpt2")) s.hidden = 4 * s.width;
  if (s.heads > 0 && s.head_size == 0) {
    if (s.width % s.heads != 0) {
      record.error("config", "config.json: width and heads",
                   {{"width", s.width},
                    {"heads", s.heads},
                    {"what", "the width is no multiple of the heads, and there is no head_dim"}});
    } else {
      s.head_size = s.width / s.heads;
    }
  }
  if (s.heads > 0 && s.kv_heads > 0 && s.heads % s.kv_heads != 0)
    record.error("config", "config.json: heads and key/value heads",
                 {{"heads", s.heads}, {"key/value heads", s.kv_heads}});
  return s;
}

void check_shapes(const ModelShape& shape, const NamedShapes& weights, Recorder& record) {
  check_table(
      weights,
      {"word_embeddings.weight", "wte.weight", "embed_tokens.weight", "embeddings.token.weight"},
      shape.vocab, shape.width, "vocabulary", "vocab_size of config.json", record);
  check_table(weights, {"position_embeddings.weight", "wpe.weight", "embeddings.position.weight"},
              shape.positions, shape.width, "positions-table", "limit of config.json", record);
  std::set<std::int64_t> layers;
  for (const auto& [name, s] : weights)
    if (const auto layer = layer_of(name)) layers.insert(*layer);
  if (!layers.empty() && shape.layers > 0) {
    std::int64_t missing = -1, count = 0;
    for (std::int64_t i = 0; i < std::min<std::int64_t>(shape.layers, 100000); ++i) {
      if (layers.count(i) != 0) continue;
      if (count++ == 0) missing = i;
    }
    if (count > 0)
      record.error("weights-missing", fmt::format("layer {}", missing),
                   {{"layers without weights", count}, {"layers of config.json", shape.layers}});
  }
  for (const MatrixRule& rule : matrix_rules(shape)) {
    if (rule.rows <= 0 || rule.columns <= 0) continue;
    for (const auto& [name, s] : weights) {
      if (!ends_with_any(name, {rule.end}) || s == Shape{rule.rows, rule.columns}) continue;
      record.error("weights-shape", name,
                   {{"expected", Shape{rule.rows, rule.columns}.str()}, {"got", s.str()}});
      break;
    }
  }
}

}  // namespace qkv::inline v0::doctor
