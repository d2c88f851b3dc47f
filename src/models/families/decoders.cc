// Decoders: GPT-2 (Radford et al. 2019), Llama (Touvron et al. 2023; SmolLM2 has its form), Mistral
// (Jiang et al. 2023), Qwen2 and Qwen3 (Yang et al. 2024, 2025), Gemma 3 (Gemma team 2025). Keys
// that a file may leave out have transformers' defaults.
#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "models/families/family.h"

namespace qkv::inline v0 {
namespace {

using Part = WeightPart;

constexpr const char* kWhere = "config.json";

void read_gpt2(const JsonReader& r, TransformerConfig& c) {
  c.vocab_size = r.integer("vocab_size");
  c.d_model = r.integer("n_embd");
  c.num_layers = r.integer("n_layer");
  c.num_heads = c.num_kv_heads = r.integer("n_head");
  require<ModelError>(c.num_heads > 0 && c.d_model % c.num_heads == 0, kWhere,
                      "n_embd: expected a multiple of n_head {}, got {}", c.num_heads, c.d_model);
  c.head_size = c.d_model / c.num_heads;
  c.d_ff = r.integer_or("n_inner", 4 * c.d_model);
  c.max_positions = r.absent("n_positions") ? r.integer("n_ctx") : r.integer("n_positions");
  c.positions = PositionKind::kLearned;
  c.norm.eps = r.number_or("layer_norm_epsilon", 1e-5);
  c.causal = true;
  c.activation = read_activation(r, "activation_function");
  expect_boolean(r, "scale_attn_weights", true);
  expect_boolean(r, "scale_attn_by_inverse_layer_idx", false);
  expect_boolean(r, "add_cross_attention", false);
  c.embedding_dropout = r.number_or("embd_pdrop", 0.1);
  c.attention_dropout = r.number_or("attn_pdrop", 0.1);
  c.hidden_dropout = r.number_or("resid_pdrop", 0.1);
  c.head.bias = false;
  c.head.tied = r.boolean_or("tie_word_embeddings", true);
}

// How the families of Llama's form differ where a file does not say.
struct Defaults {
  std::int64_t kv_heads = 0;   // 0: as many as query heads
  std::int64_t head_size = 0;  // 0: width / heads, which must be whole
  double rope_base = 10000;
  bool tied = false;
};

void read_llama_form(const JsonReader& r, TransformerConfig& c, const Defaults& defaults) {
  c.vocab_size = r.integer("vocab_size");
  c.d_model = r.integer("hidden_size");
  c.num_layers = r.integer("num_hidden_layers");
  c.num_heads = r.integer("num_attention_heads");
  c.num_kv_heads =
      r.integer_or("num_key_value_heads", defaults.kv_heads > 0 ? defaults.kv_heads : c.num_heads);
  c.head_size = r.integer_or("head_dim", defaults.head_size);
  if (c.head_size == 0) {
    require<ModelError>(c.num_heads > 0 && c.d_model % c.num_heads == 0, kWhere,
                        "hidden_size: expected a multiple of num_attention_heads {} or a head_dim, "
                        "got {}",
                        c.num_heads, c.d_model);
    c.head_size = c.d_model / c.num_heads;
  }
  c.d_ff = r.integer("intermediate_size");
  c.max_positions = r.integer("max_position_embeddings");
  c.positions = PositionKind::kRope;
  c.norm.choice = NormChoice::kRms;
  c.norm.eps = r.number_or("rms_norm_eps", 1e-6);
  c.causal = true;
  c.activation =
      r.absent("hidden_act") ? ops::Activation::kSwiglu : read_gated_activation(r, "hidden_act");
  c.qkv_bias = c.out_bias = r.boolean_or("attention_bias", false);
  c.feed_forward_bias = r.boolean_or("mlp_bias", false);
  c.attention_dropout = r.number_or("attention_dropout", 0);
  c.head.bias = false;
  c.head.tied = r.boolean_or("tie_word_embeddings", defaults.tied);
}

void read_global_rope(const JsonReader& r, TransformerConfig& c, const Defaults& defaults) {
  c.rope = read_rope(r, rope_parameters(r), defaults.rope_base);
}

// Windows of the layers that `is_windowed` picks where the file has no layer_types.
template <class F>
void read_windows(const JsonReader& r, TransformerConfig& c, F is_windowed) {
  if (r.absent("sliding_window")) return;
  const std::int64_t window = r.integer("sliding_window");
  require<ModelError>(window > 0, kWhere, "sliding_window: expected above 0, got {}", window);
  constexpr std::int64_t kMostLayers = 1 << 16;
  require<ModelError>(c.num_layers >= 1 && c.num_layers <= kMostLayers, kWhere,
                      "num_hidden_layers: expected 1 to {}, got {}", kMostLayers, c.num_layers);
  const auto layers = static_cast<std::size_t>(c.num_layers);
  if (r.absent("layer_types")) {
    for (std::size_t i = 0; i < layers; ++i)
      c.windows.push_back(is_windowed(static_cast<std::int64_t>(i)) ? window : 0);
    return;
  }
  const Json& types = r.at("layer_types");
  require<ModelError>(types.is_array() && types.size() == layers, kWhere,
                      "layer_types: expected one for each of {} layers, got {}", layers,
                      types.size());
  for (std::size_t i = 0; i < layers; ++i) {
    const std::string type = types.at(i).is_string() ? types.at(i).as_string() : "";
    require<ModelError>(type == "full_attention" || type == "sliding_attention", kWhere,
                        "layer_types: expected full_attention or sliding_attention, got \"{}\"",
                        excerpt(type));
    c.windows.push_back(type == "sliding_attention" ? window : 0);
  }
}

void read_llama(const JsonReader& r, TransformerConfig& c) {
  read_llama_form(r, c, {});
  read_global_rope(r, c, {});
}

void read_mistral(const JsonReader& r, TransformerConfig& c) {
  const Defaults defaults{.kv_heads = 8};
  read_llama_form(r, c, defaults);
  read_global_rope(r, c, defaults);
  read_windows(r, c, [](std::int64_t) { return true; });
}

void read_qwen(const JsonReader& r, TransformerConfig& c, const Defaults& defaults) {
  read_llama_form(r, c, defaults);
  read_global_rope(r, c, defaults);
  const bool used = r.boolean_or("use_sliding_window", false);
  const std::int64_t from = r.integer_or("max_window_layers", 28);
  if (used || !r.absent("layer_types"))
    read_windows(r, c, [&](std::int64_t layer) { return layer >= from; });
}

void read_qwen2(const JsonReader& r, TransformerConfig& c) {
  read_qwen(r, c, {.kv_heads = 32});
  c.qkv_bias = true;  // by the family; no key says so
  c.out_bias = false;
}

void read_qwen3(const JsonReader& r, TransformerConfig& c) {
  read_qwen(r, c, {.kv_heads = 32, .head_size = 128});
  c.head_norms = true;
}

void read_gemma3(const JsonReader& r, TransformerConfig& c) {
  const Defaults defaults{.kv_heads = 4, .head_size = 256, .rope_base = 1000000, .tied = true};
  read_llama_form(r, c, defaults);
  c.activation = r.absent("hidden_activation") ? ops::Activation::kGegluTanh
                                               : read_gated_activation(r, "hidden_activation");
  const Json* parameters = rope_parameters(r);
  if (parameters != nullptr && parameters->contains("full_attention")) {
    c.rope = read_rope(r, &parameters->at("full_attention"), defaults.rope_base);
    c.local_rope = read_rope(r, &parameters->at("sliding_attention"), 10000);
  } else {
    read_global_rope(r, c, defaults);
    c.local_rope = ops::RopeOptions{.base = r.number_or("rope_local_base_freq", 10000)};
  }
  const std::int64_t pattern = r.integer_or("sliding_window_pattern", 6);
  require<ModelError>(pattern > 0, kWhere, "sliding_window_pattern: expected above 0, got {}",
                      pattern);
  read_windows(r, c, [&](std::int64_t layer) { return (layer + 1) % pattern != 0; });
  c.placement = NormPlacement::kSandwich;
  c.norm.unit_offset = true;
  c.head_norms = true;
  c.embedding_scale = std::sqrt(static_cast<double>(c.d_model));
  const double scalar = r.number_or("query_pre_attn_scalar", 256);
  require<ModelError>(scalar > 0, kWhere, "query_pre_attn_scalar: expected above 0, got {}",
                      scalar);
  c.attention_scale = 1 / std::sqrt(scalar);
  if (!r.absent("attn_logit_softcapping")) c.attention_softcap = r.number("attn_logit_softcapping");
  if (!r.absent("final_logit_softcapping")) c.head.softcap = r.number("final_logit_softcapping");
  expect_boolean(r, "use_bidirectional_attention", false);
}

constexpr std::array kGpt2Rules{
    WeightRule{"embeddings.token", "^wte"},
    WeightRule{"embeddings.position", "^wpe"},
    WeightRule{"layers.{}.attention_norm", "^h.{}.ln_1"},
    WeightRule{"layers.{}.attention.qkv", "^h.{}.attn.c_attn", Part::kWhole, true},
    WeightRule{"layers.{}.attention.out", "^h.{}.attn.c_proj", Part::kWhole, true},
    WeightRule{"layers.{}.feed_forward_norm", "^h.{}.ln_2"},
    WeightRule{"layers.{}.feed_forward.up", "^h.{}.mlp.c_fc", Part::kWhole, true},
    WeightRule{"layers.{}.feed_forward.down", "^h.{}.mlp.c_proj", Part::kWhole, true},
    WeightRule{"norm", "^ln_f"},
    WeightRule{"head.out", "lm_head"},
};

// What Llama and Gemma have in common: all but the norms beside the feed-forward layer, and behind
// sublayers.
constexpr std::array kShared{
    WeightRule{"embeddings.token", "^embed_tokens"},
    WeightRule{"layers.{}.attention_norm", "^layers.{}.input_layernorm"},
    WeightRule{"layers.{}.attention.qkv", "^layers.{}.self_attn.q_proj", Part::kQuery},
    WeightRule{"layers.{}.attention.qkv", "^layers.{}.self_attn.k_proj", Part::kKey},
    WeightRule{"layers.{}.attention.qkv", "^layers.{}.self_attn.v_proj", Part::kValue},
    WeightRule{"layers.{}.attention.query_norm", "^layers.{}.self_attn.q_norm"},
    WeightRule{"layers.{}.attention.key_norm", "^layers.{}.self_attn.k_norm"},
    WeightRule{"layers.{}.attention.out", "^layers.{}.self_attn.o_proj"},
    WeightRule{"layers.{}.feed_forward.up", "^layers.{}.mlp.gate_proj", Part::kGate},
    WeightRule{"layers.{}.feed_forward.up", "^layers.{}.mlp.up_proj", Part::kUp},
    WeightRule{"layers.{}.feed_forward.down", "^layers.{}.mlp.down_proj"},
    WeightRule{"norm", "^norm"},
    WeightRule{"head.out", "lm_head"},
};
constexpr auto kLlamaRules = join(
    kShared, std::array{
                 WeightRule{"layers.{}.feed_forward_norm", "^layers.{}.post_attention_layernorm"},
             });
constexpr auto kGemmaRules = join(
    kShared,
    std::array{
        WeightRule{"layers.{}.attention_post_norm", "^layers.{}.post_attention_layernorm"},
        WeightRule{"layers.{}.feed_forward_norm", "^layers.{}.pre_feedforward_layernorm"},
        WeightRule{"layers.{}.feed_forward_post_norm", "^layers.{}.post_feedforward_layernorm"},
    });

// Buffers of older files.
constexpr std::array<std::string_view, 3> kIgnored{"*.attn.bias", "*.attn.masked_bias",
                                                   "*rotary_emb.inv_freq"};

constexpr std::array kGpt2Architectures{Architecture{"GPT2LMHeadModel", HeadKind::kLm},
                                        Architecture{"GPT2Model", HeadKind::kNone}};
constexpr std::array kLlamaArchitectures{Architecture{"LlamaForCausalLM", HeadKind::kLm},
                                         Architecture{"LlamaModel", HeadKind::kNone}};
constexpr std::array kMistralArchitectures{Architecture{"MistralForCausalLM", HeadKind::kLm},
                                           Architecture{"MistralModel", HeadKind::kNone}};
constexpr std::array kQwen2Architectures{Architecture{"Qwen2ForCausalLM", HeadKind::kLm},
                                         Architecture{"Qwen2Model", HeadKind::kNone}};
constexpr std::array kQwen3Architectures{Architecture{"Qwen3ForCausalLM", HeadKind::kLm},
                                         Architecture{"Qwen3Model", HeadKind::kNone}};
constexpr std::array kGemma3Architectures{Architecture{"Gemma3ForCausalLM", HeadKind::kLm},
                                          Architecture{"Gemma3TextModel", HeadKind::kNone}};

}  // namespace

constexpr Family kGpt2{
    "gpt2", kGpt2Architectures, read_gpt2, {"transformer.", false, kGpt2Rules, kIgnored}};
constexpr Family kLlama{
    "llama", kLlamaArchitectures, read_llama, {"model.", false, kLlamaRules, kIgnored}};
constexpr Family kMistral{
    "mistral", kMistralArchitectures, read_mistral, {"model.", false, kLlamaRules, kIgnored}};
constexpr Family kQwen2{
    "qwen2", kQwen2Architectures, read_qwen2, {"model.", false, kLlamaRules, kIgnored}};
constexpr Family kQwen3{
    "qwen3", kQwen3Architectures, read_qwen3, {"model.", false, kLlamaRules, kIgnored}};
constexpr Family kGemma3{
    "gemma3_text", kGemma3Architectures, read_gemma3, {"model.", false, kGemmaRules, kIgnored}};

}  // namespace qkv::inline v0
