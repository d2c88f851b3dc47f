#include "bench/train_session.h"

#include <charconv>
#include <deque>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/file.h"
#include "base/random.h"
#include "bench/suites.h"
#include "io/safetensors.h"
#include "telemetry/process.h"
#include "train/batches.h"
#include "train/evaluate.h"
#include "train/optimizer.h"
#include "train/schedule.h"
#include "train/step.h"
#include "train/token_dropout.h"

namespace qkv::inline v0::bench {
namespace {

std::vector<Sample> random_samples(std::int64_t count, std::int64_t vocabulary, std::int64_t labels,
                                   std::uint64_t seed) {
  constexpr double kMeanLength = 13;
  std::vector<Sample> samples;
  Random random(seed, hash_text("samples"));
  for (const std::int64_t length : text_lengths(count, kMeanLength, seed)) {
    Sample s;
    for (std::int64_t i = 0; i < length; ++i)
      s.ids.push_back(
          static_cast<std::int32_t>(random.below(static_cast<std::uint64_t>(vocabulary))));
    s.label = static_cast<std::int32_t>(random.below(static_cast<std::uint64_t>(labels)));
    s.index = static_cast<std::int64_t>(samples.size());
    samples.push_back(std::move(s));
  }
  return samples;
}

template <class T>
Tensor vector_tensor(const std::vector<T>& values) {
  return Tensor::from<T>(values, {static_cast<std::int64_t>(values.size())});
}

using NamedTensors = std::vector<std::pair<std::string, Tensor>>;

void append_samples(NamedTensors& tensors, const std::string& name,
                    const std::vector<Sample>& samples) {
  std::vector<std::int32_t> ids, labels;
  std::vector<std::int64_t> starts{0};
  for (const Sample& s : samples) {
    ids.insert(ids.end(), s.ids.begin(), s.ids.end());
    starts.push_back(static_cast<std::int64_t>(ids.size()));
    labels.push_back(s.label);
  }
  tensors.emplace_back(name + ".ids", vector_tensor(ids));
  tensors.emplace_back(name + ".starts", vector_tensor(starts));
  tensors.emplace_back(name + ".labels", vector_tensor(labels));
}

}  // namespace

struct TrainSession::Impl {
  Impl(EncoderClassifier&& m, std::vector<Sample> train_samples, std::vector<Sample> test_samples,
       const train::TrainSection& s, train::TokenDropout dropout)
      : model(std::move(m)),
        samples(std::move(train_samples)),
        test(std::move(test_samples)),
        section(s),
        optimizer(model.module(), train::optimizer_options(s)),
        stream(samples, s.batch_tokens, static_cast<std::uint64_t>(s.seed)),
        token_dropout(std::move(dropout)) {
    total_steps = s.steps > 0 ? s.steps : stream.count(s.epochs);
    schedule = train::schedule_of(s, total_steps);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  EncoderClassifier model;
  std::vector<Sample> samples, test;
  std::filesystem::path base;  // of fine-tuning, else empty
  train::TrainSection section;
  train::Optimizer optimizer;
  train::BatchStream stream;
  train::TokenDropout token_dropout;
  train::Schedule schedule;
  std::int64_t total_steps = 0, step = 0;
};

TrainSession::TrainSession(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TrainSession::TrainSession(train::BuiltRun run, const train::TrainConfig& config)
    : impl_(std::make_unique<Impl>(
          std::move(run.model), std::move(run.data.train), std::move(run.data.test), config.train,
          train::TokenDropout(config.train.token_dropout, run.data.tokenizer,
                              static_cast<std::uint64_t>(config.train.seed)))) {
  impl_->base = config.model.from;
  require<ConfigError>(config.train.accumulate == 1, "bench",
                       "expected train.accumulate = 1, got {}", config.train.accumulate);
}
TrainSession::~TrainSession() = default;
TrainSession::TrainSession(TrainSession&&) noexcept = default;
TrainSession& TrainSession::operator=(TrainSession&&) noexcept = default;

TrainSession TrainSession::synthetic(std::uint64_t seed) {
  constexpr std::int64_t kTexts = 4000, kLabels = 77;
  EncoderConfig shape;
  shape.vocab_size = 3000;
  shape.attention_dropout = shape.hidden_dropout = shape.activation_dropout =
      shape.embedding_dropout = 0.2;
  for (std::int64_t i = 0; i < kLabels; ++i) shape.labels.push_back(fmt::format("label {}", i));
  train::TrainSection section;
  section.label_smoothing = 0.1;
  section.weight_decay = 0.05;
  section.seed = static_cast<std::int64_t>(seed);
  EncoderClassifier model(shape, seed);
  model.module().enable_gradients();
  return TrainSession(std::make_unique<Impl>(
      std::move(model), random_samples(kTexts, shape.vocab_size, kLabels, seed),
      std::vector<Sample>{}, section, train::TokenDropout()));
}

const EncoderClassifier& TrainSession::model() const { return impl_->model; }

Turn TrainSession::run(std::int64_t steps) {
  Impl& s = *impl_;
  const ops::CrossEntropyOptions loss{.label_smoothing = s.section.label_smoothing};
  Turn turn;
  const double start = now();
  for (turn.steps = 0; turn.steps < steps; ++turn.steps) {
    s.model.module().clear_gradients();
    ++s.step;
    std::deque<Sample> hidden;
    const train::StepSums sums =
        train::accumulate_gradients(s.model, s.token_dropout.hide(s.stream.next(), s.step, hidden),
                                    loss, static_cast<std::uint64_t>(s.section.seed), s.step);
    const double scale = 1.0 / static_cast<double>(std::max<std::int64_t>(sums.counted, 1));
    const double norm = s.optimizer.gradient_norms(scale, s.section.clip_norm_type).norm;
    s.optimizer.step(train::learning_rate(s.schedule, s.step),
                     scale * train::clip_scale(norm, s.section.clip_norm));
    turn.losses.push_back(sums.loss_sum * scale);
    turn.tokens += sums.tokens;
    turn.flops += sums.flops;
  }
  turn.seconds = now() - start;
  return turn;
}

double TrainSession::accuracy() const {
  require<DataError>(!impl_->test.empty(), "bench", "expected test texts (data.test), got none");
  return train::evaluate(impl_->model, impl_->test).confusion.accuracy();
}

std::vector<std::int64_t> TrainSession::batch_lengths(std::int64_t batch) const {
  train::BatchStream stream(impl_->samples, impl_->section.batch_tokens,
                            static_cast<std::uint64_t>(impl_->section.seed));
  for (std::int64_t i = 0; i < batch; ++i) stream.next();
  std::vector<std::int64_t> lengths;
  for (const Sample* s : stream.next()) lengths.push_back(static_cast<std::int64_t>(s->ids.size()));
  return lengths;
}

void TrainSession::export_to(const std::filesystem::path& folder) const {
  const Impl& s = *impl_;
  const EncoderConfig& shape = s.model.config();
  s.model.save(folder / "initial");
  NamedTensors tensors;
  append_samples(tensors, "train", s.samples);
  append_samples(tensors, "test", s.test);
  std::vector<std::int64_t> members, starts{0};
  train::BatchStream stream(s.samples, s.section.batch_tokens,
                            static_cast<std::uint64_t>(s.section.seed));
  for (std::int64_t step = 0; step < s.total_steps; ++step) {
    for (const Sample* sample : stream.next()) members.push_back(sample - s.samples.data());
    starts.push_back(static_cast<std::int64_t>(members.size()));
  }
  tensors.emplace_back("plan.samples", vector_tensor(members));
  tensors.emplace_back("plan.starts", vector_tensor(starts));
  tensors.emplace_back(
      "sizes", vector_tensor(std::vector<std::int64_t>{shape.vocab_size, shape.num_labels()}));
  io::save_safetensors(folder / "data.safetensors", tensors);

  Json recipe = Json::object();
  recipe["layers"] = shape.num_layers;
  recipe["width"] = shape.d_model;
  recipe["heads"] = shape.num_heads;
  recipe["hidden"] = shape.d_ff;
  recipe["max_positions"] = shape.max_positions;
  recipe["positions"] = position_kind_name(shape.positions);
  recipe["rope_base"] = shape.rope_base;
  recipe["pooling"] = ops::pooling_name(shape.pooling);
  recipe["dropout"] = shape.hidden_dropout;
  recipe["base"] = s.base.string();
  recipe["learning_rate"] = s.section.learning_rate;
  recipe["head_learning_rate"] = s.section.head_learning_rate;
  recipe["schedule"] = train::schedule_name(s.schedule.kind);
  recipe["warmup_steps"] = s.schedule.warmup;
  recipe["total_steps"] = s.total_steps;
  recipe["weight_decay"] = s.section.weight_decay;
  recipe["beta1"] = s.section.beta1;
  recipe["beta2"] = s.section.beta2;
  recipe["eps"] = s.section.eps;
  recipe["norm_eps"] = shape.norm_eps;
  recipe["clip_norm"] = s.section.clip_norm;
  recipe["label_smoothing"] = s.section.label_smoothing;
  recipe["token_dropout"] = s.token_dropout.p();
  recipe["mask_id"] = s.token_dropout.mask();
  Json specials = Json::array();
  for (const std::int32_t id : s.token_dropout.specials()) specials.push_back(id);
  recipe["special_ids"] = std::move(specials);
  write_file_atomic(folder / "recipe.json", recipe.dump(2) + "\n");
}

void serve_turns(TrainSession& session, const std::function<bool(std::string&)>& next_line,
                 const std::function<void(const Json&)>& answer) {
  std::string line;
  while (next_line(line)) {
    Json out = Json::object();
    if (line == "accuracy") {
      out["accuracy"] = session.accuracy();
    } else {
      std::int64_t steps = 0;
      const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), steps);
      require<ArgumentError>(error == std::errc() && end == line.data() + line.size() && steps >= 1,
                             "bench", "expected a number of steps or 'accuracy' on stdin, got '{}'",
                             line);
      const Turn turn = session.run(steps);
      out["steps"] = turn.steps;
      out["tokens"] = turn.tokens;
      out["seconds"] = turn.seconds;
      out["tokens_per_second"] = static_cast<double>(turn.tokens) / turn.seconds;
      Json losses = Json::array();
      for (const double loss : turn.losses) losses.push_back(loss);
      out["losses"] = std::move(losses);
    }
    out["peak_bytes"] = telemetry::peak_resident_bytes();
    answer(out);
  }
}

}  // namespace qkv::inline v0::bench
