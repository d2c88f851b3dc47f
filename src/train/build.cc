#include "train/build.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "base/check.h"
#include "base/log.h"
#include "models/sentence_settings.h"

namespace qkv::inline v0::train {
namespace {

// Same labels in another order: the model's order wins.
void use_label_order(TrainData& data, const std::vector<std::string>& order) {
  std::vector<std::int32_t> index;
  for (const std::string& label : data.labels) {
    index.push_back(
        static_cast<std::int32_t>(std::find(order.begin(), order.end(), label) - order.begin()));
  }
  for (auto* samples : {&data.train, &data.validation, &data.test}) {
    for (Sample& sample : *samples) sample.label = index[static_cast<std::size_t>(sample.label)];
  }
  data.labels = order;
}

bool same_set(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  return std::set<std::string>(a.begin(), a.end()) == std::set<std::string>(b.begin(), b.end());
}

void keep_or_set(double& rate, double wanted) {
  if (wanted != kKeepDropout) rate = wanted;
}

void say_head_is_new() {
  log_message(LogLevel::kInfo,
              "the labels are others than those of model.from: its head starts anew");
}

EncoderClassifier continue_from(const EncoderClassifier& old, const TrainConfig& config,
                                TrainData& data) {
  EncoderConfig shape = old.config();
  keep_or_set(shape.attention_dropout, config.model.shape.attention_dropout);
  keep_or_set(shape.hidden_dropout, config.model.shape.hidden_dropout);
  keep_or_set(shape.activation_dropout, config.model.shape.activation_dropout);
  keep_or_set(shape.embedding_dropout, config.model.shape.embedding_dropout);
  const bool same_labels = same_set(shape.labels, data.labels);
  if (same_labels) use_label_order(data, shape.labels);
  shape.labels = data.labels;
  EncoderClassifier model(shape, static_cast<std::uint64_t>(config.train.seed));
  model.module().for_each([&](nn::Parameter& parameter) {
    const bool head = parameter.name.rfind("classifier.", 0) == 0;
    if (head && !same_labels) return;
    const nn::Parameter* source = old.module().find(parameter.name);
    require<ModelError>(
        source != nullptr && source->var.value().shape() == parameter.var.value().shape(), "model",
        "{}: expected a parameter {} of shape {}", config.model.from.string(), parameter.name,
        parameter.var.value().shape().str());
    parameter.var.value().copy_from(source->var.value());
  });
  model.module().bump_version();
  if (!same_labels) say_head_is_new();
  return model;
}

std::optional<double> if_wanted(double rate) {
  return rate == kKeepDropout ? std::nullopt : std::optional(rate);
}

EncoderClassifier fine_tuned(const TrainConfig& config, const PublishedEncoder& base,
                             TrainData& data) {
  const EncoderConfig& shape = config.model.shape;
  FineTuneOptions options;
  options.pooling = config.model.pooling;
  if (!options.pooling && std::filesystem::exists(config.model.from / "modules.json"))
    options.pooling = read_sentence_settings(config.model.from).pooling;
  const bool same_labels = same_set(base.labels, data.labels);
  if (same_labels) use_label_order(data, base.labels);
  if (!same_labels && !base.labels.empty()) say_head_is_new();
  options.labels = data.labels;
  options.fresh_classifier = !same_labels || options.pooling;
  options.attention_dropout = if_wanted(shape.attention_dropout);
  options.hidden_dropout = if_wanted(shape.hidden_dropout);
  options.activation_dropout = if_wanted(shape.activation_dropout);
  options.embedding_dropout = if_wanted(shape.embedding_dropout);
  options.seed = static_cast<std::uint64_t>(config.train.seed);
  EncoderClassifier model = EncoderClassifier::fine_tune(config.model.from, options);
  require<ConfigError>(data.tokenizer.vocab_size() <= model.config().vocab_size, "config",
                       "model.from: expected a tokenizer of at most the model's {} pieces, got {}",
                       model.config().vocab_size, data.tokenizer.vocab_size());
  return model;
}

EncoderClassifier new_model(const TrainConfig& config, const TrainData& data) {
  EncoderConfig shape = config.model.shape;
  const std::int64_t pieces = data.tokenizer.vocab_size();
  if (shape.vocab_size == 0) shape.vocab_size = pieces;
  require<ConfigError>(shape.vocab_size >= pieces, "config",
                       "model.vocab_size: expected at least the tokenizer's {} pieces, got {}",
                       pieces, shape.vocab_size);
  shape.labels = data.labels;
  return {shape, static_cast<std::uint64_t>(config.train.seed)};
}

}  // namespace

BuiltRun build_run(const TrainConfig& config, const std::filesystem::path& folder, bool resume) {
  std::optional<PublishedEncoder> published;
  std::optional<EncoderClassifier> old;
  if (!config.model.from.empty()) {
    if (EncoderClassifier::is_published(config.model.from)) {
      published = EncoderClassifier::published(config.model.from);
    } else {
      old = EncoderClassifier::load(config.model.from);
    }
  }
  require<ConfigError>(published || !config.model.pooling, "config",
                       "model.pooling: stands in the folder of model.from; remove it here");
  std::int64_t positions = config.model.shape.max_positions;
  std::optional<std::int64_t> limit = config.model.shape.position_limit();
  if (old) {
    positions = old->config().max_positions;
    limit = old->config().position_limit();
  } else if (published) {
    positions = published->max_tokens;
    limit = positions;
  }
  RunFacts facts;
  facts.task = config.task;
  facts.text = config.data.text;
  facts.label = config.data.label;
  facts.limits.max_length = config.data.max_length > 0 ? config.data.max_length : positions;
  facts.limits.truncate = config.data.truncate;
  facts.configuration = config.to_json();
  require<ConfigError>(!limit || facts.limits.max_length <= *limit, "config",
                       "data.max_length: expected at most the model's {} positions, got {}",
                       positions, facts.limits.max_length);
  auto claimed = std::make_unique<RunFolder>(folder, facts, resume);
  TrainData data = load_train_data(config, facts.limits);
  EncoderClassifier model = old         ? continue_from(*old, config, data)
                            : published ? fine_tuned(config, *published, data)
                                        : new_model(config, data);
  choose_trainable(model.module(), config.train.train, config.train.freeze);
  model.module().enable_gradients();
  claimed->begin(facts);
  data.tokenizer.save(claimed->path());
  return {std::move(claimed), std::move(data), std::move(model)};
}

OptimizerOptions optimizer_options(const TrainSection& train) {
  return {.kind = train.optimizer,
          .weight_decay = train.weight_decay,
          .beta1 = train.beta1,
          .beta2 = train.beta2,
          .eps = train.eps,
          .momentum = train.momentum,
          .head_rate =
              train.head_learning_rate > 0 ? train.head_learning_rate / train.learning_rate : 1};
}

Schedule schedule_of(const TrainSection& train, std::int64_t total_steps) {
  Schedule out{.kind = train.schedule,
               .peak = train.learning_rate,
               .floor = train.min_learning_rate,
               .total = total_steps,
               .step_size = train.step_size,
               .step_gamma = train.step_gamma};
  out.warmup = train.warmup_steps >= 0
                   ? train.warmup_steps
                   : static_cast<std::int64_t>(
                         std::llround(train.warmup_ratio * static_cast<double>(total_steps)));
  out.warmup = std::min(out.warmup, total_steps);
  return out;
}

}  // namespace qkv::inline v0::train
