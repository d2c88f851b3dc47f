// Whole models: encoding texts and training, in texts and tokens per second.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/random.h"
#include "bench/suites.h"
#include "bench/train_session.h"
#include "models/encoder_classifier.h"
#include "telemetry/process.h"
#include "text/dataset.h"
#include "train/step.h"

namespace qkv::inline v0::bench {
namespace {

struct EncodeCase {
  const char* name;
  std::int64_t layers, width, heads, hidden;
  std::int64_t shortest, longest;  // tokens, uniform
};
// The examples' model, and the shape of MiniLM-L6.
constexpr EncodeCase kEncode[] = {
    {"4 layers, width 256, 5 to 60 tokens", 4, 256, 8, 1024, 5, 60},
    {"6 layers, width 384, 5 to 60 tokens", 6, 384, 12, 1536, 5, 60},
    {"6 layers, width 384, 5 to 256 tokens", 6, 384, 12, 1536, 5, 256}};

std::vector<Sample> uniform_samples(const EncodeCase& c, std::int64_t count,
                                    std::int64_t vocabulary, std::uint64_t seed) {
  Random random(seed, hash_text(c.name));
  std::vector<Sample> samples(static_cast<std::size_t>(count));
  for (Sample& s : samples) {
    const auto span = static_cast<std::uint64_t>(c.longest - c.shortest + 1);
    s.ids.resize(static_cast<std::size_t>(c.shortest) + random.below(span));
    for (auto& id : s.ids)
      id = static_cast<std::int32_t>(random.below(static_cast<std::uint64_t>(vocabulary)));
  }
  return samples;
}

}  // namespace

void run_encode(const SuiteOptions& options, const Emit& emit) {
  constexpr std::int64_t kVocabulary = 3000, kBatchTokens = 4096;
  MultiplyAddProbe probe;
  for (const EncodeCase& c : kEncode) {
    EncoderConfig shape;
    shape.num_layers = c.layers;
    shape.d_model = c.width;
    shape.num_heads = c.heads;
    shape.d_ff = c.hidden;
    shape.vocab_size = kVocabulary;
    shape.labels = {"a", "b"};
    EncoderClassifier model(shape, options.seed);
    model.module().keep_packed();
    const std::vector<Sample> samples =
        uniform_samples(c, options.quick ? 64 : 512, kVocabulary, options.seed);
    std::vector<std::int64_t> lengths;
    for (const Sample& s : samples) lengths.push_back(static_cast<std::int64_t>(s.ids.size()));
    std::vector<TokenBatch> batches;
    double flops = 0;
    for (const auto& members :
         plan_batches(lengths, 0, {.batch_tokens = kBatchTokens, .shuffle = false})) {
      std::vector<const Sample*> batch;
      for (const std::int64_t i : members) batch.push_back(&samples[static_cast<std::size_t>(i)]);
      batches.push_back(make_batch(batch));
      flops += train::encoding_flops(shape, batches.back().layout);
    }
    const auto body = [&] {
      for (const TokenBatch& batch : batches) {
        Context context;
        context.layout = &batch.layout;
        model.pooled(context, batch.ids);
      }
    };
    const Measurement m = measure(body, probe, options.measure());
    Record r;
    r.name = fmt::format("encode/{}", c.name);
    r.seconds = m.seconds;
    r.work = static_cast<double>(samples.size());
    r.unit = "texts/s";
    r.peak_share = flops / m.seconds / m.peak;
    r.runs = m.runs;
    r.dropped = m.dropped;
    r.category = c.name;
    r.more["gflops"] = flops / m.seconds / 1e9;
    emit(r);
  }
}

void run_train(const SuiteOptions& options, const Emit& emit) {
  const std::int64_t steps = options.quick ? 1 : 10;
  TrainSession session = TrainSession::synthetic(options.seed);
  session.run(options.quick ? 1 : 5);
  MultiplyAddProbe probe;
  // Steps differ in size, so seconds are those of a step of the mean number of tokens.
  std::int64_t tokens = 0, runs = 0;
  double flops = 0;
  const Measurement m = measure(
      [&] {
        const Turn turn = session.run(steps);
        tokens += turn.tokens;
        flops += turn.flops;
        ++runs;
      },
      probe, options.quick ? options.measure() : MeasureOptions{10, 10, 5, 50});
  const double per_run = static_cast<double>(tokens) / static_cast<double>(runs);
  const double flops_per_run = flops / static_cast<double>(runs);
  Record r;
  r.name = "train/4 layers, width 256, texts of 13 tokens";
  r.seconds = m.seconds / static_cast<double>(steps);
  r.work = per_run / static_cast<double>(steps);
  r.unit = "tokens/s";
  r.peak_share = flops_per_run / m.seconds / m.peak;
  r.runs = m.runs;
  r.dropped = m.dropped;
  r.category = "4 layers, width 256";
  r.more["gflops"] = flops_per_run / m.seconds / 1e9;
  r.more["peak_bytes"] = telemetry::peak_resident_bytes();
  emit(r);
}

}  // namespace qkv::inline v0::bench
