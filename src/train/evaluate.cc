#include "train/evaluate.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "base/check.h"

namespace qkv::inline v0::train {
namespace {

// Samples in order of length, cut into batches of at most batch_tokens tokens.
std::vector<std::vector<const Sample*>> length_batches(const std::vector<Sample>& samples,
                                                       std::int64_t batch_tokens) {
  std::vector<const Sample*> order(samples.size());
  std::transform(samples.begin(), samples.end(), order.begin(), [](const Sample& s) { return &s; });
  std::stable_sort(order.begin(), order.end(),
                   [](const Sample* a, const Sample* b) { return a->ids.size() < b->ids.size(); });
  std::vector<std::vector<const Sample*>> batches;
  std::int64_t tokens = 0;
  for (const Sample* sample : order) {
    const auto length = static_cast<std::int64_t>(sample->ids.size());
    if (batches.empty() || tokens + length > batch_tokens) {
      batches.emplace_back();
      tokens = 0;
    }
    batches.back().push_back(sample);
    tokens += length;
  }
  return batches;
}

std::int64_t bucket_end(std::int64_t length) {
  std::int64_t end = 8;
  while (end < length) end *= 2;
  return end;
}

}  // namespace

void for_each_logits(const EncoderClassifier& model, const std::vector<Sample>& samples,
                     std::int64_t batch_tokens, const LogitsSink& sink) {
  for (const auto& members : length_batches(samples, batch_tokens)) {
    const TokenBatch batch = make_batch(members);
    Context context;
    context.layout = &batch.layout;
    const Tensor logits = model.forward(context, batch.ids).value();
    const auto width = static_cast<std::size_t>(logits.dim(1));
    const float* values = logits.data<float>();
    for (std::size_t b = 0; b < members.size(); ++b) {
      const std::span<const float> row(values + b * width, width);
      const auto index = static_cast<std::size_t>(members[b] - samples.data());
      require<NumericError>(
          std::all_of(row.begin(), row.end(), [](float x) { return std::isfinite(x); }), "logits",
          "expected finite numbers, got one that is not for text {}; the weights are damaged or "
          "too "
          "large",
          index + 1);
      sink(index, row);
    }
  }
}

Evaluation evaluate(const EncoderClassifier& model, const std::vector<Sample>& samples,
                    std::int64_t batch_tokens) {
  Evaluation out{
      metrics::Confusion(static_cast<std::int64_t>(model.config().labels.size())), 0, {}};
  std::vector<double> losses(samples.size());
  std::map<std::int64_t, LengthBucket> buckets;
  for_each_logits(model, samples, batch_tokens, [&](std::size_t i, std::span<const float> logits) {
    const std::int32_t truth = samples[i].label;
    const auto predicted = std::max_element(logits.begin(), logits.end()) - logits.begin();
    out.confusion.add(truth, predicted);
    double sum = 0;
    const double largest = logits[static_cast<std::size_t>(predicted)];
    for (const float x : logits) sum += std::exp(x - largest);
    losses[i] = largest + std::log(sum) - logits[static_cast<std::size_t>(truth)];
    const std::int64_t end = bucket_end(static_cast<std::int64_t>(samples[i].ids.size()));
    LengthBucket& bucket = buckets[end];
    bucket.from = end == 8 ? 1 : end / 2 + 1;
    bucket.to = end;
    ++bucket.n;
    bucket.right += predicted == truth;
  });
  if (!samples.empty()) {
    out.loss =
        std::accumulate(losses.begin(), losses.end(), 0.0) / static_cast<double>(samples.size());
  }
  for (const auto& [end, bucket] : buckets) out.buckets.push_back(bucket);
  return out;
}

std::vector<double> softmax_of(std::span<const float> logits) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  std::vector<double> out;
  double sum = 0;
  for (const float x : logits) sum += out.emplace_back(std::exp(x - largest));
  for (double& p : out) p /= sum;
  return out;
}

}  // namespace qkv::inline v0::train
