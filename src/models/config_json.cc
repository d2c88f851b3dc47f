// config.json: the configuration of a model folder, in BERT's words where transformers can load it.
#include <fmt/core.h>

#include "base/check.h"
#include "models/config.h"
#include "models/json_reader.h"

namespace qkv::inline v0 {
namespace {

constexpr std::int64_t kFormat = 1;  // of model_type "qkv"; a newer one is refused

void write_labels(Json& json, const std::vector<std::string>& labels) {
  Json id2label = Json::object(), label2id = Json::object();
  for (std::size_t i = 0; i < labels.size(); ++i) {
    id2label[std::to_string(i)] = labels[i];
    label2id[labels[i]] = static_cast<std::int64_t>(i);
  }
  json["id2label"] = std::move(id2label);
  json["label2id"] = std::move(label2id);
}

const char* bert_activation(ops::Activation activation) {
  return activation == ops::Activation::kGeluTanh ? "gelu_pytorch_tanh"
                                                  : ops::activation_name(activation);
}

void write_dropouts(Json& json, const EncoderConfig& c) {
  json["attention_dropout"] = c.attention_dropout;
  json["hidden_dropout"] = c.hidden_dropout;
  json["activation_dropout"] = c.activation_dropout;
  json["embedding_dropout"] = c.embedding_dropout;
}

Json bert_json(const EncoderConfig& c) {
  Json json = Json::object();
  json["architectures"] = Json(Json::Array{Json("BertForSequenceClassification")});
  json["model_type"] = "bert";
  json["vocab_size"] = c.vocab_size;
  json["hidden_size"] = c.d_model;
  json["num_hidden_layers"] = c.num_layers;
  json["num_attention_heads"] = c.num_heads;
  json["intermediate_size"] = c.d_ff;
  json["hidden_act"] = bert_activation(c.activation);
  json["max_position_embeddings"] = c.max_positions;
  json["type_vocab_size"] = 1;
  json["layer_norm_eps"] = c.norm_eps;
  json["position_embedding_type"] = "absolute";
  json["hidden_dropout_prob"] = c.hidden_dropout;
  json["attention_probs_dropout_prob"] = c.attention_dropout;
  json["problem_type"] = "single_label_classification";
  write_labels(json, c.labels);
  Json own = Json::object();  // what BERT's keys cannot say
  own["attention"] = attention_kind_name(c.attention);
  write_dropouts(own, c);
  json["qkv"] = std::move(own);
  return json;
}

Json own_json(const EncoderConfig& c) {
  Json json = Json::object();
  json["architectures"] = Json(Json::Array{Json("QkvEncoderClassifier")});
  json["model_type"] = "qkv";
  json["format"] = kFormat;
  json["vocab_size"] = c.vocab_size;
  json["d_model"] = c.d_model;
  json["num_layers"] = c.num_layers;
  json["num_heads"] = c.num_heads;
  json["num_kv_heads"] = c.kv_heads();
  json["d_ff"] = c.d_ff;
  json["max_positions"] = c.max_positions;
  json["norm"] = norm_choice_name(c.norm);
  json["norm_placement"] = norm_placement_name(c.norm_placement);
  json["norm_eps"] = c.norm_eps;
  json["activation"] = ops::activation_name(c.activation);
  json["positions"] = position_kind_name(c.positions);
  json["rope_base"] = c.rope_base;
  json["attention"] = attention_kind_name(c.attention);
  json["window"] = c.window;
  json["pooling"] = ops::pooling_name(c.pooling);
  json["bias"] = c.bias;
  json["embedding_norm"] = c.embedding_norm;
  json["pooler"] = c.pooler;
  write_dropouts(json, c);
  write_labels(json, c.labels);
  return json;
}

EncoderConfig from_bert(const JsonReader& r, const Json& json) {
  EncoderConfig c;
  c.vocab_size = r.integer("vocab_size");
  c.d_model = r.integer("hidden_size");
  c.num_layers = r.integer("num_hidden_layers");
  c.num_heads = r.integer("num_attention_heads");
  c.d_ff = r.integer("intermediate_size");
  c.activation = r.named("hidden_act", ops::parse_activation);
  c.max_positions = r.integer("max_position_embeddings");
  c.norm_eps = r.number("layer_norm_eps");
  const std::string positions = r.text_or("position_embedding_type", "absolute");
  require<ModelError>(positions == "absolute", "config.json",
                      "position_embedding_type: expected \"absolute\", got \"{}\"", positions);
  require<ModelError>(!r.boolean_or("is_decoder", false), "config.json",
                      "is_decoder: expected false for a classifier, got true");
  c.norm_placement = NormPlacement::kPost;
  c.pooling = ops::Pooling::kFirst;
  c.set_placement_defaults();
  c.hidden_dropout = r.number_or("hidden_dropout_prob", 0.1);
  c.attention_dropout = r.number_or("attention_probs_dropout_prob", 0.1);
  c.embedding_dropout = c.hidden_dropout;
  c.activation_dropout = 0;
  c.labels = read_labels(r);
  if (const Json* own = json.find("qkv")) {
    const JsonReader q(*own);
    c.attention = q.named("attention", parse_attention_kind);
    c.attention_dropout = q.number("attention_dropout");
    c.hidden_dropout = q.number("hidden_dropout");
    c.activation_dropout = q.number("activation_dropout");
    c.embedding_dropout = q.number("embedding_dropout");
  }
  require<ModelError>(c.is_bert(), "config.json",
                      "expected a BERT that this version computes, got hidden_act \"{}\"",
                      r.text("hidden_act"));
  return c;
}

EncoderConfig from_own(const JsonReader& r) {
  const std::int64_t format = r.integer("format");
  require<ModelError>(format == kFormat, "config.json",
                      "format: expected {}, got {}; use the version that wrote it", kFormat,
                      format);
  EncoderConfig c;
  c.vocab_size = r.integer("vocab_size");
  c.d_model = r.integer("d_model");
  c.num_layers = r.integer("num_layers");
  c.num_heads = r.integer("num_heads");
  c.num_kv_heads = r.integer("num_kv_heads");
  c.d_ff = r.integer("d_ff");
  c.max_positions = r.integer("max_positions");
  c.norm = r.named("norm", parse_norm_choice);
  c.norm_placement = r.named("norm_placement", parse_norm_placement);
  c.norm_eps = r.number("norm_eps");
  c.activation = r.named("activation", ops::parse_activation);
  c.positions = r.named("positions", parse_position_kind);
  c.rope_base = r.number("rope_base");
  c.attention = r.named("attention", parse_attention_kind);
  c.window = r.integer("window");
  c.pooling = r.named("pooling", ops::parse_pooling);
  c.bias = r.boolean("bias");
  c.embedding_norm = r.boolean("embedding_norm");
  c.pooler = r.boolean("pooler");
  c.attention_dropout = r.number("attention_dropout");
  c.hidden_dropout = r.number("hidden_dropout");
  c.activation_dropout = r.number("activation_dropout");
  c.embedding_dropout = r.number("embedding_dropout");
  c.labels = read_labels(r);
  return c;
}

}  // namespace

Json EncoderConfig::to_json() const { return is_bert() ? bert_json(*this) : own_json(*this); }

EncoderConfig EncoderConfig::from_json(const Json& json) {
  const JsonReader reader(json);
  const std::string& type = reader.text("model_type");
  require<ModelError>(
      type == "bert" || type == "qkv", "config.json",
      "model_type: expected \"qkv\" or \"bert\" (a sequence classifier), got \"{}\"", type);
  EncoderConfig config = type == "bert" ? from_bert(reader, json) : from_own(reader);
  if (const std::vector<std::string> faults = config.faults(); !faults.empty()) {
    std::string all;
    for (const std::string& fault : faults) all += (all.empty() ? "" : "; ") + fault;
    fail<ModelError>("config.json", "{}", all);
  }
  return config;
}

}  // namespace qkv::inline v0
