// The endless stream of micro-batches of a run: a pure function of the seed and a cursor.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "text/dataset.h"

namespace qkv::inline v0::train {

// Not thread-safe. `samples` must outlive it.
class BatchStream {
 public:
  BatchStream(const std::vector<Sample>& samples, std::int64_t batch_tokens, std::uint64_t seed);

  // Goes to micro-batch `batch` of `epoch` (which may be one past the last: the next is then the
  // first of epoch + 1).
  void seek(std::int64_t epoch, std::int64_t batch);
  // Members of the next micro-batch.
  std::vector<const Sample*> next();

  std::int64_t epoch() const { return epoch_; }
  std::int64_t batch() const { return batch_; }
  std::int64_t epochs_done() const { return epoch_ + (batch_ == size() ? 1 : 0); }
  double position() const {
    return static_cast<double>(epoch_) + static_cast<double>(batch_) / static_cast<double>(size());
  }
  std::string order_hash() const;  // of the running epoch's plan
  // Micro-batches of `epochs` whole epochs.
  std::int64_t count(std::int64_t epochs) const;

 private:
  std::int64_t size() const { return static_cast<std::int64_t>(plan_.size()); }
  std::vector<std::vector<std::int64_t>> plan(std::int64_t epoch) const;
  const std::vector<Sample>& samples_;
  std::vector<std::int64_t> lengths_;
  BatchOptions options_;
  std::int64_t epoch_ = 0, batch_ = 0;
  std::vector<std::vector<std::int64_t>> plan_;
};

}  // namespace qkv::inline v0::train
