// broken-attention: the incident that this project was born from, replayed on the support requests.
#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "qkv/tokenizer.h"

#include "base/check.h"
#include "lab/lab.h"
#include "lab/padded_encoder.h"
#include "lab/plot.h"
#include "lab/short_training.h"
#include "models/encoder_classifier.h"
#include "text/dataset.h"

namespace qkv::inline v0::lab {

namespace {

constexpr const char* kIncident = "我昨天买的那个红色的充电宝什么时候到";
// Places in the incident, in characters: [start, end).
struct Span {
  std::int64_t start, end;
};
constexpr Span kArrive{17, 18}, kRed{7, 9}, kPowerBank{10, 13};
constexpr std::size_t kServed = 16;  // texts that a server pads together
constexpr std::array kBuckets{"short", "medium", "long"};

// What the claim calls passing and failing, in shares of the lines.
constexpr double kPasses = 0.05, kFails = 0.10, kLearnt = 0.85;

struct Fault {
  const char* name;
  const char* key;
  bool scaled;
  double mask_fill;
};
constexpr std::array kFaults{
    Fault{"none", "none", true, -INFINITY}, Fault{"no scale", "no_scale", false, -INFINITY},
    Fault{"padding scores 0", "zero_mask", true, 0}, Fault{"both", "both", false, 0}};

struct Lines {
  std::vector<Sample> samples;
  std::vector<std::string> buckets;  // "short", "medium", "long"
};

struct Model {
  Tokenizer tokenizer;
  EncoderClassifier encoder;
};

struct Cell {
  const Fault* fault;
  std::map<std::string, double> accuracy;  // by bucket, and "all"
  double to_red = 0, to_power_bank = 0,
         to_padding = 0;  // attention of 到, mean over heads and layers
  double largest = 0;     // weight of a row, mean over the sentence's tokens, heads and layers
  HeatMap map;
};

std::vector<TextRow> read_rows(const Options& options, const char* file, const char* label) {
  TableOptions table;
  table.label = label;
  return read_table(options.data / file, table);
}

std::vector<Sample> encode_rows(const std::vector<TextRow>& rows, const Tokenizer& tokenizer,
                                const std::vector<std::string>& labels) {
  EncodeOptions plain;
  plain.with_pieces = false;
  plain.parse_special = false;
  std::vector<Sample> samples;
  for (const TextRow& row : rows) {
    const auto it = std::find(labels.begin(), labels.end(), row.label);
    require<DataError>(it != labels.end(), "broken-attention",
                       "expected a label that the model knows, got '{}' in line {}", row.label,
                       row.line);
    samples.push_back({tokenizer.encode(row.text, plain).ids,
                       static_cast<std::int32_t>(it - labels.begin()),
                       static_cast<std::int64_t>(samples.size())});
  }
  return samples;
}

Lines test_lines(const Options& options, const Model& model) {
  Lines lines;
  lines.samples = encode_rows(read_rows(options, "test.tsv", "label"), model.tokenizer,
                              model.encoder.config().labels);
  for (const TextRow& row : read_rows(options, "test.tsv", "length"))
    lines.buckets.push_back(row.label);
  return lines;
}

PaddedAttention attention_of(const Fault& fault, const PaddedEncoder& encoder) {
  return {fault.scaled ? encoder.right_scale() : 1.0, fault.mask_fill};
}

std::int32_t pad_id(const Tokenizer& tokenizer) { return tokenizer.special_id("pad").value_or(0); }

// Serves the lines in batches of kServed, in the order of the file.
std::map<std::string, double> accuracy(const Model& model, const Lines& lines, const Fault& fault) {
  const PaddedEncoder encoder(model.encoder);
  const PaddedAttention attention = attention_of(fault, encoder);
  std::map<std::string, std::pair<double, double>> counts;
  for (std::size_t start = 0; start < lines.samples.size(); start += kServed) {
    const std::size_t end = std::min(start + kServed, lines.samples.size());
    std::vector<const Sample*> served;
    for (std::size_t i = start; i < end; ++i) served.push_back(&lines.samples[i]);
    Context context;
    const PaddedBatch batch = pad_batch(served, pad_id(model.tokenizer));
    const Tensor logits = encoder.forward(context, batch, attention).value();
    for (std::size_t i = start; i < end; ++i) {
      const float* row =
          logits.data<float>() + static_cast<std::int64_t>(i - start) * logits.dim(1);
      const bool right = std::max_element(row, row + logits.dim(1)) - row == lines.samples[i].label;
      for (const std::string& bucket : {lines.buckets[i], std::string("all")}) {
        counts[bucket].first += right;
        counts[bucket].second += 1;
      }
    }
  }
  std::map<std::string, double> shares;
  for (const auto& [bucket, count] : counts) shares[bucket] = count.first / count.second;
  return shares;
}

// Mean over layers and heads of the weights of the first text of a batch, which has `real` tokens
// and is padded to `length`.
class FirstTextWeights : public CaptureSink {
 public:
  FirstTextWeights(std::int64_t heads, std::int64_t length, std::int64_t real)
      : heads_(heads),
        length_(length),
        real_(real),
        sums_(static_cast<std::size_t>(length * length)) {}
  bool wants_attention() const override { return true; }
  void attention(const std::string&, const Tensor& weights) override {
    const float* w = weights.data<float>();
    const std::size_t cells = sums_.size();
    for (std::int64_t h = 0; h < heads_; ++h) {
      const float* head = w + static_cast<std::size_t>(h) * cells;
      for (std::size_t i = 0; i < cells; ++i) sums_[i] += head[i];
      for (std::int64_t i = 0; i < real_; ++i)
        largest_ += *std::max_element(head + i * length_, head + (i + 1) * length_);
    }
    count_ += static_cast<double>(heads_);
  }
  double weight(std::int64_t query, std::int64_t key) const {
    return sums_[static_cast<std::size_t>(query * length_ + key)] / count_;
  }
  // Mean over the real tokens of the largest weight of a row.
  double largest() const { return largest_ / (count_ * static_cast<double>(real_)); }

 private:
  std::int64_t heads_, length_, real_;
  std::vector<double> sums_;
  double count_ = 0, largest_ = 0;
};

std::vector<std::int64_t> tokens_in(const Encoding& encoding, Span span) {
  std::vector<std::int64_t> found;
  for (std::size_t i = 0; i < encoding.offsets.size(); ++i) {
    const auto& [start, end] = encoding.offsets[i];
    if (start < span.end && end > span.start) found.push_back(static_cast<std::int64_t>(i));
  }
  return found;
}

// Fills in what 到 looks at when the incident is served beside other texts.
void look_at_incident(const Model& model, const Lines& lines, Cell& cell) {
  const Encoding encoding = model.tokenizer.encode(kIncident);
  const Sample incident{encoding.ids, 0, 0};
  std::vector<const Sample*> served{&incident};
  for (std::size_t i = 0; i + 1 < kServed && i < lines.samples.size(); ++i)
    served.push_back(&lines.samples[i]);
  const PaddedEncoder encoder(model.encoder);
  const PaddedBatch batch = pad_batch(served, pad_id(model.tokenizer));
  const std::int64_t padded = batch.layout.length(0), real = batch.lengths[0];
  FirstTextWeights weights(model.encoder.config().num_heads, padded, real);
  Context context;
  context.capture = &weights;
  encoder.forward(context, batch, attention_of(*cell.fault, encoder));
  const auto sum = [&](std::int64_t query, std::int64_t from, std::int64_t to) {
    double total = 0;
    for (std::int64_t j = from; j < to; ++j) total += weights.weight(query, j);
    return total;
  };
  const std::int64_t arrive = tokens_in(encoding, kArrive).back();
  for (const std::int64_t j : tokens_in(encoding, kRed)) cell.to_red += weights.weight(arrive, j);
  for (const std::int64_t j : tokens_in(encoding, kPowerBank))
    cell.to_power_bank += weights.weight(arrive, j);
  cell.to_padding = sum(arrive, real, padded);
  cell.largest = weights.largest();
  const std::vector<std::string> labels = [&] {
    std::vector<std::string> names;
    for (const std::int32_t id : encoding.ids)
      names.push_back(model.tokenizer.decode(std::span(&id, 1), false));
    return names;
  }();
  cell.map.rows = cell.map.columns = labels;
  cell.map.columns.emplace_back("padding");
  for (const Span span : {kArrive, kRed, kPowerBank}) {
    for (const std::int64_t j : tokens_in(encoding, span))
      cell.map.marked.push_back(static_cast<std::size_t>(j));
  }
  for (std::int64_t i = 0; i < real; ++i) {
    for (std::int64_t j = 0; j < real; ++j)
      cell.map.values.push_back(static_cast<float>(weights.weight(i, j)));
    cell.map.values.push_back(static_cast<float>(sum(i, real, padded)));
  }
}

Cell measure(const Model& model, const Lines& lines, const Fault& fault) {
  Cell cell{&fault, accuracy(model, lines, fault), 0, 0, 0, 0, {}};
  look_at_incident(model, lines, cell);
  return cell;
}

// The shape of examples/support.toml; in the quick form smaller, and without dropout, since so few
// steps leave nothing to overfit.
EncoderConfig config_for(const std::vector<TextRow>& rows, const Tokenizer& tokenizer, bool full) {
  EncoderConfig config;
  config.d_model = full ? 128 : 64;
  config.num_layers = 2;
  config.num_heads = 4;
  config.d_ff = full ? 256 : 128;
  config.positions = PositionKind::kRope;
  config.pooling = ops::Pooling::kMax;
  if (!full) {
    config.attention_dropout = config.hidden_dropout = 0;
    config.activation_dropout = config.embedding_dropout = 0;
  }
  config.vocab_size = tokenizer.vocab_size();
  for (const TextRow& row : rows) config.labels.push_back(row.label);
  std::sort(config.labels.begin(), config.labels.end());
  config.labels.erase(std::unique(config.labels.begin(), config.labels.end()), config.labels.end());
  return config;
}

Model train_with(const Options& options, const Fault& fault, const Tokenizer& tokenizer,
                 const std::vector<TextRow>& rows, const TrainingPlan& plan) {
  const EncoderConfig config = config_for(rows, tokenizer, options.full);
  Model model{tokenizer, EncoderClassifier(config, options.seed)};
  const std::vector<Sample> samples = encode_rows(rows, tokenizer, config.labels);
  const PaddedEncoder encoder(model.encoder);
  const PaddedAttention attention = attention_of(fault, encoder);
  PaddedBatch batch;  // outlives the backward pass, which reads its layouts
  train_shortly(
      model.encoder.module(), samples,
      [&](Context& context, const std::vector<const Sample*>& texts) {
        batch = pad_batch(texts, pad_id(tokenizer));
        return encoder.forward(context, batch, attention);
      },
      plan);
  return model;
}

void add_rows(const char* where, const std::vector<Cell>& cells, Result& result, Json& json) {
  for (const Cell& cell : cells) {
    std::vector<std::string> row{cell.fault->name, where};
    Json figures = Json::object();
    for (const char* bucket : {kBuckets[0], kBuckets[1], kBuckets[2], "all"}) {
      row.push_back(fmt::format("{:.1f} %", 100 * cell.accuracy.at(bucket)));
      figures[std::string("accuracy_") + bucket] = cell.accuracy.at(bucket);
    }
    row.push_back(fmt::format("{:.3f}", cell.to_red));
    row.push_back(fmt::format("{:.3f}", cell.to_power_bank));
    row.push_back(fmt::format("{:.3f}", cell.to_padding));
    figures["attention_arrive_to_red"] = cell.to_red;
    figures["attention_arrive_to_power_bank"] = cell.to_power_bank;
    figures["attention_arrive_to_padding"] = cell.to_padding;
    figures["largest_weight"] = cell.largest;
    json[cell.fault->key] = std::move(figures);
    result.table.rows.push_back(std::move(row));
  }
}

// Whether the cells show what the claim says of the last fault (both).
Holds judge(const std::vector<Cell>& cells) {
  const auto drop = [&](const char* bucket) {
    return cells.front().accuracy.at(bucket) - cells.back().accuracy.at(bucket);
  };
  if (cells.front().accuracy.at("long") < kLearnt) return Holds::kUndecided;
  return drop("short") <= kPasses && drop("long") >= kFails ? Holds::kTrue : Holds::kFalse;
}

std::string sentence(const std::vector<Cell>& cells) {
  const auto percent = [](const Cell& cell, const char* bucket) {
    return 100 * cell.accuracy.at(bucket);
  };
  return fmt::format("short {:.1f} to {:.1f} %, long {:.1f} to {:.1f} %",
                     percent(cells.front(), "short"), percent(cells.back(), "short"),
                     percent(cells.front(), "long"), percent(cells.back(), "long"));
}

// What the faults do to the attention, in the models that were trained with them.
std::string reason(const std::vector<Cell>& cells) {
  const Cell &none = cells[0], &no_scale = cells[1], &zeros = cells[2];
  return fmt::format(
      "without the scale scores are sqrt(d_k) times as large, the largest weight of a row is on "
      "average {:.2f} instead of {:.2f}, and a token sees little but its best match while it "
      "learns; a padding score of 0 is a key of weight e^0, and {:.0f} % of what 到 looks at is "
      "padding",
      no_scale.largest, none.largest, 100 * zeros.to_padding);
}

std::string picture(const std::vector<Cell>& used, const std::vector<Cell>& trained) {
  const Cell* worst = &used.front();
  const char* where = "in use only";
  for (const Cell& cell : used) {
    if (cell.accuracy.at("long") < worst->accuracy.at("long")) worst = &cell;
  }
  for (const Cell& cell : trained) {
    if (cell.accuracy.at("long") < worst->accuracy.at("long"))
      worst = &cell, where = "in training and use";
  }
  HeatMap right = used.front().map, wrong = worst->map;
  right.title = "right";
  wrong.title = fmt::format("{}, {}", worst->fault->name, where);
  return heat_maps("attention, mean over heads and layers (rows look at columns)", {right, wrong});
}

}  // namespace

Result run_broken_attention(const Options& options) {
  const std::vector<TextRow> rows = read_rows(options, "train.tsv", "label");
  TrainingPlan plan;
  plan.seed = options.seed;
  plan.learning_rate = 3e-3;
  plan.steps = options.full ? 2000 : 1500;
  plan.texts = options.full ? 32 : 16;
  // A small data set is gone through 30 times, not more.
  plan.steps = std::min(plan.steps, 30 * static_cast<std::int64_t>(rows.size()) / plan.texts);
  std::unique_ptr<Model> given;
  if (!options.model.empty()) {
    given = std::make_unique<Model>(
        Model{Tokenizer::load(options.model), EncoderClassifier::load(options.model)});
  }
  const Tokenizer tokenizer = given ? given->tokenizer : [&] {
    std::vector<std::string> texts;
    for (const TextRow& row : rows) texts.push_back(row.text);
    TokenizerOptions words;
    words.kind = TokenizerKind::kWordPiece;
    words.lowercase = true;
    return Tokenizer::train(texts, words);
  }();
  std::vector<Cell> used, trained;
  for (const Fault& fault : kFaults) {
    auto model = std::make_unique<Model>(train_with(options, fault, tokenizer, rows, plan));
    const Lines lines = test_lines(options, *model);
    trained.push_back(measure(*model, lines, fault));
    if (!given) given = std::move(model);  // the first fault is none
  }
  const Lines lines = test_lines(options, *given);
  for (const Fault& fault : kFaults) used.push_back(measure(*given, lines, fault));

  Result result;
  result.table.columns = {"fault", "where",      "short",        "medium",       "long",
                          "all",   "到 to 红色", "到 to 充电宝", "到 to padding"};
  result.measured = Json::object();
  Json use_json = Json::object(), trained_json = Json::object();
  add_rows("use only", used, result, use_json);
  add_rows("training and use", trained, result, trained_json);
  result.measured["use_only"] = std::move(use_json);
  result.measured["training_and_use"] = std::move(trained_json);
  result.measured["training_steps"] = plan.steps;
  const Holds in_use = judge(used), in_training = judge(trained);
  result.holds = in_use == Holds::kTrue || in_training == Holds::kTrue ? Holds::kTrue
                 : in_use == Holds::kUndecided                         ? Holds::kUndecided
                                                                       : Holds::kFalse;
  result.verdict =
      fmt::format("both faults in use only: {}; in training and use ({} steps): {}. Why: {}",
                  sentence(used), plan.steps, sentence(trained), reason(trained));
  result.pictures = {{"broken-attention.svg", picture(used, trained)}};
  return result;
}

}  // namespace qkv::inline v0::lab
