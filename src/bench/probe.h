// Measured limits of the machine as it is right now: what a benchmark's figures are shares of.
//
// Everything that disturbs a probe makes it slower, so the best of several tries is the limit. Not
// thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "qkv/tensor.h"

namespace qkv::inline v0::bench {

class Probe {
 public:
  virtual ~Probe() = default;
  // One try of about a millisecond (longer where a single pass over memory takes longer). Units per
  // second.
  virtual double once() = 0;
  // The best of tries that fill `seconds`, at least five.
  double best(double seconds = 0.06);
};

// Operations per second of fp32 multiply-adds in registers (two operations each) on `threads`
// threads; 0: num_threads().
class MultiplyAddProbe : public Probe {
 public:
  explicit MultiplyAddProbe(int threads = 0);
  double once() override;

 private:
  int threads_;
};

// Values of e^x per second on all threads, vectors in the first-level cache.
class ExponentialProbe : public Probe {
 public:
  ExponentialProbe();
  double once() override;

 private:
  std::vector<float> x_;
};

// Arrays that a pass over memory reads, updates in place, and writes.
struct Traffic {
  int reads = 0, updates = 0, writes = 0;
  int arrays() const { return reads + updates + writes; }
  // Bytes moved per element, as the program sees it: an update counts twice.
  int bytes_per_element() const { return 4 * (reads + 2 * updates + writes); }
};

// Bytes per second of a pass with this traffic over arrays of `elements` floats each. Small ones
// stay in the cache that they fit into. ArgumentError for more than four arrays that are read, or
// four that are written only.
class BandwidthProbe : public Probe {
 public:
  BandwidthProbe(const Traffic& traffic, std::int64_t elements);
  double once() override;

 private:
  void pass();
  Traffic traffic_;
  std::int64_t elements_, chunk_;
  int passes_ = 1;
  std::vector<Tensor> arrays_;
};

// Seconds since some fixed moment.
double now();

}  // namespace qkv::inline v0::bench
