#include "train/batches.h"

#include "base/check.h"
#include "base/random.h"
#include "train/data.h"

namespace qkv::inline v0::train {

BatchStream::BatchStream(const std::vector<Sample>& samples, std::int64_t batch_tokens,
                         std::uint64_t seed)
    : samples_(samples), options_{.batch_tokens = batch_tokens, .seed = seed} {
  lengths_.reserve(samples.size());
  for (const Sample& sample : samples)
    lengths_.push_back(static_cast<std::int64_t>(sample.ids.size()));
  plan_ = plan(0);
}

std::vector<std::vector<std::int64_t>> BatchStream::plan(std::int64_t epoch) const {
  return plan_batches(lengths_, epoch, options_);
}

void BatchStream::seek(std::int64_t epoch, std::int64_t batch) {
  require<ArgumentError>(epoch >= 0 && batch >= 0, "batches",
                         "expected an epoch and a batch from 0, got {} and {}", epoch, batch);
  if (epoch != epoch_) plan_ = plan(epoch);
  require<ArgumentError>(batch <= size(), "batches",
                         "expected at most batch {} of epoch {}, got {}", size(), epoch, batch);
  epoch_ = epoch;
  batch_ = batch;
}

std::vector<const Sample*> BatchStream::next() {
  if (batch_ >= size()) seek(epoch_ + 1, 0);
  std::vector<const Sample*> members;
  for (const std::int64_t i : plan_[static_cast<std::size_t>(batch_)])
    members.push_back(&samples_[static_cast<std::size_t>(i)]);
  ++batch_;
  return members;
}

std::string BatchStream::order_hash() const {
  std::uint64_t hash = 0;
  for (const auto& members : plan_) {
    hash = hash_pair(hash, members.size());
    for (const std::int64_t i : members) hash = hash_pair(hash, static_cast<std::uint64_t>(i));
  }
  return hex(hash);
}

std::int64_t BatchStream::count(std::int64_t epochs) const {
  std::int64_t total = 0;
  for (std::int64_t epoch = 0; epoch < epochs; ++epoch)
    total += static_cast<std::int64_t>(plan(epoch).size());
  return total;
}

}  // namespace qkv::inline v0::train
