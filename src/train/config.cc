#include "train/config.h"

#include <fmt/format.h>

#include "base/check.h"
#include "base/file.h"
#include "train/config_reader.h"

namespace qkv::inline v0::train {
namespace {

constexpr std::int64_t kMaxCount = std::int64_t{1} << 40;
constexpr std::int64_t kMaxWidth = std::int64_t{1} << 20;

template <class Enum>
struct Word {
  const char* name;
  Enum value;
};

// Reads a choice whose words stand in `words`, in the order of the documentation.
template <class Enum, std::size_t kCount>
Enum pick(const std::string& name, const Word<Enum> (&words)[kCount], Enum otherwise) {
  for (const Word<Enum>& word : words) {
    if (name == word.name) return word.value;
  }
  return otherwise;
}

constexpr Word<TokenizerKind> kTokenizers[] = {{"bpe", TokenizerKind::kBpe},
                                               {"wordpiece", TokenizerKind::kWordPiece},
                                               {"char", TokenizerKind::kChar}};
constexpr Word<ScheduleKind> kSchedules[] = {{"cosine", ScheduleKind::kCosine},
                                             {"linear", ScheduleKind::kLinear},
                                             {"constant", ScheduleKind::kConstant},
                                             {"step", ScheduleKind::kStep},
                                             {"inverse_sqrt", ScheduleKind::kInverseSqrt}};

// `otherwise`: the rate where neither the key of its own nor model.dropout is given.
void read_dropouts(ConfigReader& reader, EncoderConfig& shape, double otherwise) {
  double all = otherwise;
  reader.number("model.dropout", all, 0, 1);
  shape.attention_dropout = shape.hidden_dropout = all;
  shape.activation_dropout = shape.embedding_dropout = all;
  reader.number("model.attention_dropout", shape.attention_dropout, 0, 1);
  reader.number("model.hidden_dropout", shape.hidden_dropout, 0, 1);
  reader.number("model.activation_dropout", shape.activation_dropout, 0, 1);
  reader.number("model.embedding_dropout", shape.embedding_dropout, 0, 1);
}

void read_words(ConfigReader& reader, EncoderConfig& shape) {
  std::string norm = "layer", placement = "pre", activation = "gelu", positions = "learned";
  std::string attention = "auto", pooling = "mean";
  reader.choice("model.norm", norm, {"layer", "rms", "none"});
  reader.choice("model.norm_placement", placement, {"pre", "post", "sandwich"});
  reader.choice("model.activation", activation,
                {"gelu", "gelu_tanh", "relu", "silu", "swiglu", "geglu", "geglu_tanh"});
  reader.choice("model.positions", positions, {"sinusoidal", "learned", "rope", "none"}, {"alibi"});
  reader.choice("model.attention", attention, {"auto", "naive", "flash", "window", "linear"});
  reader.choice("model.pooling", pooling, {"first", "mean", "max", "last"});
  shape.norm = parse_norm_choice(norm);
  shape.norm_placement = parse_norm_placement(placement);
  shape.activation = ops::parse_activation(activation);
  shape.positions = parse_position_kind(positions);
  shape.attention = parse_attention_kind(attention);
  shape.pooling = ops::parse_pooling(pooling);
}

// With `from` the folder says the shape: a key that would contradict it is a fault.
void read_model(ConfigReader& reader, ModelSection& model) {
  reader.path("model.from", model.from);
  const bool fresh = !reader.has("model.from");
  if (!fresh) {
    for (const char* name :
         {"d_model", "num_layers", "num_heads", "num_kv_heads", "d_ff", "max_positions",
          "vocab_size", "norm", "norm_placement", "activation", "positions", "attention", "window",
          "rope_base", "norm_eps", "bias", "embedding_norm", "pooler"}) {
      reader.refuse("model." + std::string(name),
                    "stands in the folder of model.from; remove it here");
    }
    read_dropouts(reader, model.shape, kKeepDropout);
    if (reader.has("model.pooling")) {
      std::string pooling = "mean";
      reader.choice("model.pooling", pooling, {"first", "mean", "max", "last"});
      model.pooling = ops::parse_pooling(pooling);
    }
    return;
  }
  EncoderConfig& shape = model.shape;
  reader.integer("model.d_model", shape.d_model, 1, kMaxWidth);
  reader.integer("model.num_layers", shape.num_layers, 0, 1000);
  reader.integer("model.num_heads", shape.num_heads, 1, kMaxWidth);
  reader.integer("model.num_kv_heads", shape.num_kv_heads, 1, kMaxWidth);
  reader.integer("model.d_ff", shape.d_ff, 0, kMaxWidth);
  reader.integer("model.max_positions", shape.max_positions, 1, kMaxWidth);
  reader.integer("model.vocab_size", shape.vocab_size, 1, kMaxWidth * 16);
  reader.integer("model.window", shape.window, 1, kMaxWidth);
  reader.number("model.rope_base", shape.rope_base, 1, 1e12);
  reader.number("model.norm_eps", shape.norm_eps, 1e-12, 1);
  reader.boolean("model.bias", shape.bias);
  read_words(reader, shape);
  shape.set_placement_defaults();
  reader.boolean("model.embedding_norm", shape.embedding_norm);
  reader.boolean("model.pooler", shape.pooler);
  read_dropouts(reader, shape, 0.1);
  EncoderConfig complete = shape;  // with stand-ins for what only the data can say
  if (complete.vocab_size == 0) complete.vocab_size = 16;
  complete.labels = {"a", "b"};
  for (const std::string& fault : complete.faults()) {
    const std::size_t colon = fault.find(": ");
    if (colon == std::string::npos) {
      reader.fault("model", fault);
    } else {
      reader.fault("model." + fault.substr(0, colon), fault.substr(colon + 2));
    }
  }
}

void read_tokenizer(ConfigReader& reader, const ModelSection& model, TokenizerSection& tokenizer) {
  reader.path("tokenizer.from", tokenizer.from);
  if (!model.from.empty() && tokenizer.from.empty()) tokenizer.from = model.from;
  if (!tokenizer.from.empty()) {
    for (const char* name : {"kind", "vocab_size", "min_frequency", "lowercase"}) {
      reader.refuse("tokenizer." + std::string(name),
                    "stands in the folder that the tokenizer comes from; remove it here");
    }
    return;
  }
  std::string kind = "bpe";
  reader.choice("tokenizer.kind", kind, {"bpe", "wordpiece", "char"}, {"unigram"});
  tokenizer.options.kind = pick(kind, kTokenizers, TokenizerKind::kBpe);
  if (model.shape.vocab_size > 0) tokenizer.options.vocab_size = model.shape.vocab_size;
  reader.integer("tokenizer.vocab_size", tokenizer.options.vocab_size, 6, kMaxWidth * 16);
  reader.integer("tokenizer.min_frequency", tokenizer.options.min_frequency, 1, kMaxCount);
  reader.boolean("tokenizer.lowercase", tokenizer.options.lowercase);
  if (model.shape.vocab_size > 0 && tokenizer.options.vocab_size > model.shape.vocab_size) {
    reader.fault("tokenizer.vocab_size",
                 fmt::format("expected at most model.vocab_size {}, got {}", model.shape.vocab_size,
                             tokenizer.options.vocab_size));
  }
}

void read_data(ConfigReader& reader, const ModelSection& model, DataSection& data) {
  if (!reader.has("data.train"))
    reader.fault("data.train", "expected the file of training texts; it is missing");
  reader.path("data.train", data.train);
  reader.path("data.validation", data.validation);
  reader.path("data.test", data.test);
  reader.text("data.text", data.text);
  reader.text("data.label", data.label);
  if (data.text == data.label) {
    reader.fault("data.label", fmt::format("expected another column than data.text, got \"{}\" for "
                                           "both",
                                           data.label));
  }
  reader.number("data.validation_share", data.validation_share, 0, 0.9);
  reader.integer("data.max_length", data.max_length, 1, kMaxWidth);
  reader.boolean("data.truncate", data.truncate);
  for (const char* name : {"data.source", "data.target"}) {
    reader.refuse(name,
                  "belongs to task \"seq2seq\"; task \"classify\" takes data.text and data.label");
  }
  const bool table = model.from.empty() && model.shape.position_limit().has_value();
  if (table && data.max_length > model.shape.max_positions) {
    reader.fault("data.max_length", fmt::format("expected at most model.max_positions {}, got {}",
                                                model.shape.max_positions, data.max_length));
  }
}

void read_optimizer(ConfigReader& reader, TrainSection& train) {
  std::string optimizer = "adamw", clip_type = "l2";
  reader.choice("train.optimizer", optimizer, {"adamw", "sgd"},
                {"adam", "adafactor", "lion", "muon", "lamb"});
  train.optimizer = optimizer == "sgd" ? OptimizerKind::kSgd : OptimizerKind::kAdamW;
  reader.number("train.weight_decay", train.weight_decay, 0, 1e6);
  std::vector<double> betas = {train.beta1, train.beta2};
  reader.numbers("train.betas", betas, 2, 0, 1 - 1e-9);
  train.beta1 = betas[0];
  train.beta2 = betas[1];
  reader.number("train.eps", train.eps, 1e-30, 1);  // 0 would make 0 / 0 of a zero gradient
  reader.number("train.momentum", train.momentum, 0, 1 - 1e-9);
  if (reader.has("train.momentum") && train.optimizer != OptimizerKind::kSgd) {
    reader.fault("train.momentum", "belongs to optimizer \"sgd\"; adamw takes betas");
  }
  if (reader.has("train.betas") && train.optimizer == OptimizerKind::kSgd) {
    reader.fault("train.betas", "belongs to optimizer \"adamw\"; sgd takes momentum");
  }
  reader.number("train.clip_norm", train.clip_norm, 0, 1e30);
  reader.choice("train.clip_norm_type", clip_type, {"l2", "max"});
  train.clip_norm_type = clip_type == "max" ? ClipNorm::kMax : ClipNorm::kL2;
}

void read_schedule(ConfigReader& reader, TrainSection& train) {
  std::string schedule = "cosine";
  reader.number("train.learning_rate", train.learning_rate, 0, 1e3);
  reader.number("train.min_learning_rate", train.min_learning_rate, 0, 1e3);
  if (train.min_learning_rate > train.learning_rate) {
    reader.fault("train.min_learning_rate",
                 fmt::format("expected at most train.learning_rate {}, got {}", train.learning_rate,
                             train.min_learning_rate));
  }
  reader.number("train.head_learning_rate", train.head_learning_rate, 0, 1e3);
  if (train.head_learning_rate > 0 && train.learning_rate == 0) {
    reader.fault("train.head_learning_rate",
                 "expected a train.learning_rate above 0 beside it; to train the head alone, set "
                 "train.train = [\"classifier.*\"]");
  }
  reader.integer("train.warmup_steps", train.warmup_steps, 0, kMaxCount);
  reader.number("train.warmup_ratio", train.warmup_ratio, 0, 1);
  if (train.steps > 0 && train.warmup_steps > train.steps) {
    reader.fault("train.warmup_steps", fmt::format("expected at most train.steps {}, got {}",
                                                   train.steps, train.warmup_steps));
  }
  reader.choice("train.schedule", schedule,
                {"cosine", "linear", "constant", "step", "inverse_sqrt"});
  train.schedule = pick(schedule, kSchedules, ScheduleKind::kCosine);
  reader.integer("train.step_size", train.step_size, 1, kMaxCount);
  reader.number("train.step_gamma", train.step_gamma, 0, 1);
}

void read_train(ConfigReader& reader, TrainSection& train) {
  reader.integer("train.steps", train.steps, 1, kMaxCount);
  reader.integer("train.epochs", train.epochs, 1, kMaxCount);
  reader.integer("train.batch_tokens", train.batch_tokens, 1, std::int64_t{1} << 28);
  reader.integer("train.accumulate", train.accumulate, 1, 1 << 20);
  read_schedule(reader, train);
  read_optimizer(reader, train);
  reader.number("train.label_smoothing", train.label_smoothing, 0, 1 - 1e-9);
  reader.number("train.token_dropout", train.token_dropout, 0, 1 - 1e-9);
  std::string precision = "fp32", checkpointing = "none";
  reader.choice("train.precision", precision, {"fp32"}, {"bf16"});
  reader.choice("train.checkpoint_activations", checkpointing, {"none"}, {"selective", "block"});
  reader.texts("train.freeze", train.freeze);
  reader.texts("train.train", train.train);
  reader.integer("train.seed", train.seed, 0, std::int64_t{1} << 62);
  bool deterministic = true;  // every run is; the key is there for those who ask
  reader.boolean("train.deterministic", deterministic);
  reader.integer("train.log_every", train.log_every, 1, kMaxCount);
  reader.integer("train.eval_every", train.eval_every, 1, kMaxCount);
  reader.integer("train.save_every", train.save_every, 1, kMaxCount);
  reader.integer("train.early_stop", train.early_stop, 0, kMaxCount);
}

template <class Enum, std::size_t kCount>
const char* word_of(Enum value, const Word<Enum> (&words)[kCount]) {
  for (const Word<Enum>& word : words) {
    if (word.value == value) return word.name;
  }
  return "unknown";
}

Json list(const std::vector<std::string>& items) {
  Json out = Json::array();
  for (const std::string& item : items) out.push_back(item);
  return out;
}

Json model_json(const ModelSection& model) {
  const EncoderConfig& s = model.shape;
  Json out = Json::object();
  out["from"] = model.from.string();
  if (model.pooling) out["from_pooling"] = ops::pooling_name(*model.pooling);
  out["d_model"] = s.d_model;
  out["num_layers"] = s.num_layers;
  out["num_heads"] = s.num_heads;
  out["num_kv_heads"] = s.num_kv_heads;
  out["d_ff"] = s.d_ff;
  out["max_positions"] = s.max_positions;
  out["vocab_size"] = s.vocab_size;
  out["norm"] = norm_choice_name(s.norm);
  out["norm_placement"] = norm_placement_name(s.norm_placement);
  out["activation"] = ops::activation_name(s.activation);
  out["positions"] = position_kind_name(s.positions);
  out["attention"] = attention_kind_name(s.attention);
  out["window"] = s.window;
  out["pooling"] = ops::pooling_name(s.pooling);
  out["rope_base"] = s.rope_base;
  out["norm_eps"] = s.norm_eps;
  out["bias"] = s.bias;
  out["embedding_norm"] = s.embedding_norm;
  out["pooler"] = s.pooler;
  out["attention_dropout"] = s.attention_dropout;
  out["hidden_dropout"] = s.hidden_dropout;
  out["activation_dropout"] = s.activation_dropout;
  out["embedding_dropout"] = s.embedding_dropout;
  return out;
}

Json train_json(const TrainSection& t) {
  Json out = Json::object();
  out["steps"] = t.steps;
  out["epochs"] = t.epochs;
  out["batch_tokens"] = t.batch_tokens;
  out["accumulate"] = t.accumulate;
  out["learning_rate"] = t.learning_rate;
  out["min_learning_rate"] = t.min_learning_rate;
  if (t.head_learning_rate > 0) out["head_learning_rate"] = t.head_learning_rate;
  out["warmup_steps"] = t.warmup_steps;
  out["warmup_ratio"] = t.warmup_ratio;
  out["schedule"] = schedule_name(t.schedule);
  out["step_size"] = t.step_size;
  out["step_gamma"] = t.step_gamma;
  out["optimizer"] = t.optimizer == OptimizerKind::kAdamW ? "adamw" : "sgd";
  out["weight_decay"] = t.weight_decay;
  out["beta1"] = t.beta1;
  out["beta2"] = t.beta2;
  out["eps"] = t.eps;
  out["momentum"] = t.momentum;
  out["clip_norm"] = t.clip_norm;
  out["clip_norm_type"] = t.clip_norm_type == ClipNorm::kL2 ? "l2" : "max";
  out["label_smoothing"] = t.label_smoothing;
  out["token_dropout"] = t.token_dropout;
  out["freeze"] = list(t.freeze);
  out["train"] = list(t.train);
  out["seed"] = t.seed;
  out["log_every"] = t.log_every;
  out["eval_every"] = t.eval_every;
  out["save_every"] = t.save_every;
  out["early_stop"] = t.early_stop;
  return out;
}

}  // namespace

Json TrainConfig::to_json() const {
  Json token = Json::object();
  token["from"] = tokenizer.from.string();
  token["kind"] = word_of(tokenizer.options.kind, kTokenizers);
  token["vocab_size"] = tokenizer.options.vocab_size;
  token["min_frequency"] = tokenizer.options.min_frequency;
  token["lowercase"] = tokenizer.options.lowercase;
  Json files = Json::object();
  files["train"] = data.train.string();
  files["validation"] = data.validation.string();
  files["test"] = data.test.string();
  files["text"] = data.text;
  files["label"] = data.label;
  files["validation_share"] = data.validation_share;
  files["max_length"] = data.max_length;
  files["truncate"] = data.truncate;
  Json out = Json::object();
  out["task"] = task;
  out["model"] = model_json(model);
  out["tokenizer"] = std::move(token);
  out["data"] = std::move(files);
  out["train"] = train_json(train);
  return out;
}

TrainConfig parse_train_config(std::string_view toml, const std::filesystem::path& folder,
                               std::span<const std::string> overrides, const std::string& name) {
  TomlDocument document = parse_toml(toml, name);
  for (const std::string& assignment : overrides) apply_override(document, assignment);
  ConfigReader reader(document, folder);
  TrainConfig config;
  if (!reader.has("task")) reader.fault("task", "expected task = \"classify\"; it is missing");
  reader.choice("task", config.task, {"classify"}, {"lm", "mlm", "seq2seq", "embed"});
  bool tie_embeddings = false;
  reader.boolean("model.tie_embeddings", tie_embeddings);
  if (tie_embeddings) {
    reader.fault("model.tie_embeddings",
                 "belongs to tasks that predict tokens; a classifier has nothing to tie");
  }
  read_model(reader, config.model);
  read_tokenizer(reader, config.model, config.tokenizer);
  read_data(reader, config.model, config.data);
  read_train(reader, config.train);
  reader.check_unknown();
  const std::vector<std::string>& faults = reader.faults();
  if (faults.empty()) return config;
  std::string all;
  for (const std::string& fault : faults) all += "\n  " + fault;
  fail<ConfigError>("config", "{} has {} fault{}:{}", name, faults.size(),
                    faults.size() == 1 ? "" : "s", all);
}

TrainConfig read_train_config(const std::filesystem::path& file,
                              std::span<const std::string> overrides) {
  std::error_code ignored;
  require<ConfigError>(std::filesystem::is_regular_file(file, ignored), "config",
                       "expected a configuration file, found none at {}", file.string());
  const std::filesystem::path folder = std::filesystem::absolute(file).parent_path();
  return parse_train_config(read_file(file), folder, overrides, file.string());
}

}  // namespace qkv::inline v0::train
