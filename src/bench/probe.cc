#include "bench/probe.h"

#include <algorithm>
#include <atomic>
#include <chrono>

#include "qkv/threads.h"

#include "base/check.h"
#include "base/memory.h"
#include "base/thread_pool.h"
#include "kernels/probe.h"

namespace qkv::inline v0::bench {
namespace {

// Results go here, so that no loop can be left out.
std::atomic<float> sink{0};
void use(float value) { sink.store(value, std::memory_order_relaxed); }

constexpr double kTry = 1e-3;  // seconds

// The products of MultiplyAddProbe::calm: some 20 us each, operands in the second-level cache.
constexpr std::int64_t kCalmRows = 96, kCalmDepth = 256, kCalmColumns = 64;
constexpr int kScratchSlot = 2;  // of thread_scratch; the product itself takes another

}  // namespace

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double Probe::best(double seconds) {
  const double start = now();
  double rate = once();
  for (int i = 1; i < 5 || now() - start < seconds; ++i) rate = std::max(rate, once());
  return rate;
}

MultiplyAddProbe::MultiplyAddProbe(int threads)
    : MultiplyAddProbe(threads, kernels::probe_kernels()) {}
MultiplyAddProbe::MultiplyAddProbe(const kernels::ProbeKernels& kernels)
    : MultiplyAddProbe(0, kernels) {}
MultiplyAddProbe::MultiplyAddProbe(int threads, const kernels::ProbeKernels& kernels)
    : threads_(threads > 0 ? threads : num_threads()),
      kernels_(kernels),
      left_(kCalmRows * kCalmDepth, 0.5f),
      right_(kCalmColumns * kCalmDepth, 0.25f),
      packed_right_(right_.data(), kCalmColumns, false, kCalmDepth, kCalmColumns) {}

void MultiplyAddProbe::run(std::int64_t pieces, FunctionRef<void(std::int64_t)> piece) const {
  if (threads_ != 1) return parallel_for(pieces, piece);
  for (std::int64_t i = 0; i < pieces; ++i) piece(i);
}

double MultiplyAddProbe::calm(double rate) {
  if (kernels::product_kernels() == nullptr) return rate;  // the reference: too slow for a probe
  constexpr std::int64_t kPieces = 20;
  const auto piece = [&](std::int64_t) {
    float* product = thread_scratch_of<float>(kCalmRows * kCalmColumns, kScratchSlot);
    packed_right_.multiply(kCalmRows, left_.data(), kCalmDepth, nullptr, product);
    use(product[0]);
  };
  const std::int64_t pieces = kPieces * threads_;
  const double start = now();
  run(pieces, piece);
  return static_cast<double>(pieces) / (now() - start);
}

double MultiplyAddProbe::once() {
  // Pieces of some 20 us: a thread that wakes late costs little.
  constexpr std::int64_t kRounds = 5000, kPieces = 64;
  const auto& probe = kernels_;
  const auto piece = [&](std::int64_t) { use(probe.multiply_add(kRounds)); };
  const std::int64_t pieces = kPieces * threads_;
  const double start = now();
  run(pieces, piece);
  const std::int64_t operations = 2 * pieces * kRounds * probe.multiply_adds_per_round;
  return static_cast<double>(operations) / (now() - start);
}

ExponentialProbe::ExponentialProbe() : x_(2048) {
  for (std::size_t i = 0; i < x_.size(); ++i) x_[i] = -0.3f * static_cast<float>(i % 37);
}

double ExponentialProbe::once() {
  constexpr std::int64_t kRepeats = 32, kPieces = 64;
  const auto& probe = kernels::probe_kernels();
  const std::int64_t pieces = kPieces * num_threads(), n = static_cast<std::int64_t>(x_.size());
  const double start = now();
  parallel_for(pieces, [&](std::int64_t) {
    for (std::int64_t i = 0; i < kRepeats; ++i) use(probe.exponential(x_.data(), n));
  });
  return static_cast<double>(pieces * kRepeats * n) / (now() - start);
}

BandwidthProbe::BandwidthProbe(const Traffic& traffic, std::int64_t elements) : traffic_(traffic) {
  require<ArgumentError>(traffic.reads >= 0 && traffic.updates >= 0 && traffic.writes >= 0 &&
                             traffic.arrays() >= 1 && traffic.writes <= kernels::kMaxProbeArrays &&
                             traffic.reads + traffic.updates <= kernels::kMaxProbeArrays,
                         "probe", "expected 1 to {} arrays, got {} + {} + {}",
                         kernels::kMaxProbeArrays, traffic.reads, traffic.updates, traffic.writes);
  // 64 KiB of each array a piece, or the share of one thread in small arrays.
  const std::int64_t block = kernels::kProbeBlock;
  elements_ = std::max<std::int64_t>(1, elements / block) * block;
  chunk_ = std::min<std::int64_t>(16384, (elements_ / block / num_threads() + 1) * block);
  for (int i = 0; i < traffic.arrays(); ++i) {
    arrays_.push_back(Tensor::empty({elements_}));
    arrays_.back().fill(1);
  }
  pass();
  const double start = now();
  pass();
  passes_ = static_cast<int>(std::clamp(kTry / std::max(1e-7, now() - start), 1.0, 1000.0));
}

void BandwidthProbe::pass() {
  parallel_chunks(elements_, chunk_, [&](std::int64_t begin, std::int64_t end) {
    kernels::ProbeArrays part;
    std::size_t next = 0;
    for (; part.reads < traffic_.reads; ++part.reads)
      part.read[part.reads] = arrays_[next++].data<float>() + begin;
    for (; part.updates < traffic_.updates; ++part.updates)
      part.update[part.updates] = arrays_[next++].data<float>() + begin;
    for (; part.writes < traffic_.writes; ++part.writes)
      part.write[part.writes] = arrays_[next++].data<float>() + begin;
    part.n = end - begin;
    use(kernels::probe_kernels().pass(part));
  });
}

double BandwidthProbe::once() {
  pass();  // brings small arrays back into the cache
  const double start = now();
  for (int i = 0; i < passes_; ++i) pass();
  const double bytes = static_cast<double>(elements_) * traffic_.bytes_per_element() * passes_;
  return bytes / (now() - start);
}

PassProbe::PassProbe(const Traffic& traffic, std::int64_t elements, const Arithmetic& arithmetic)
    : memory_(traffic, elements),
      arithmetic_(arithmetic),
      bytes_(static_cast<double>(traffic.bytes_per_element())) {}

double PassProbe::once() {
  double arithmetic = 0;  // seconds per element
  if (arithmetic_.instructions > 0)
    arithmetic += 2 * arithmetic_.instructions / multiply_add_.once();
  if (arithmetic_.exponentials > 0) arithmetic += arithmetic_.exponentials / exponential_.once();
  const double memory = bytes_ / memory_.once();
  ++tries_;
  if (arithmetic > memory) ++bound_;
  return bytes_ / std::max(memory, arithmetic);
}

}  // namespace qkv::inline v0::bench
