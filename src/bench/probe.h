// Measured limits of the machine as it is right now: what a benchmark's figures are shares of.
//
// Everything that disturbs a probe makes it slower, so the best of several tries is the limit. Not
// thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "qkv/tensor.h"

#include "base/function_ref.h"
#include "kernels/packed_matrix.h"
#include "kernels/probe.h"

namespace qkv::inline v0::bench {

class Probe {
 public:
  virtual ~Probe() = default;
  // One try of about a millisecond (longer where a single pass over memory takes longer). Units per
  // second.
  virtual double once() = 0;
  // How fast the machine is beside this try, on a scale of the probe's own: its rate, or what tells
  // more.
  virtual double calm(double rate) { return rate; }
  // Remembers the calmest try; returns `calm`.
  double saw(double calm) {
    if (calm > calmest_) calmest_ = calm;
    return calm;
  }
  double calmest() const { return calmest_; }
  // The best of tries that fill `seconds`, at least five.
  double best(double seconds = 0.06);

 private:
  double calmest_ = 0;
};

// Operations per second of fp32 multiply-adds in registers (two operations each) on `threads`
// threads; 0: num_threads().
//
// A busy hyperthread beside ours takes ports that load, caches and half of the decoders, none of
// which these loops need: they are as fast as ever while a product of matrices in the first-level
// cache slows down. So calm() is the rate of such products.
class MultiplyAddProbe : public Probe {
 public:
  explicit MultiplyAddProbe(int threads = 0);
  // Of other multiply-adds than those of fp32.
  explicit MultiplyAddProbe(const kernels::ProbeKernels& kernels);
  double once() override;
  double calm(double rate) override;

 private:
  MultiplyAddProbe(int threads, const kernels::ProbeKernels& kernels);
  void run(std::int64_t pieces, FunctionRef<void(std::int64_t)> piece) const;

  int threads_;
  const kernels::ProbeKernels& kernels_;
  std::vector<float> left_, right_;  // of the products
  kernels::PackedMatrix<float> packed_right_;
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

// Arithmetic of a pass, per element: values of e^x, and other vector instructions per lane.
struct Arithmetic {
  double exponentials = 0, instructions = 0;
};

// The limit of a pass in bytes per second: what the memory probe gives, or what its arithmetic
// takes at the rates of the other two probes (a multiply-add is one instruction), whichever is
// slower. The two are taken to overlap wholly, so it cannot be reached where they are close.
class PassProbe : public Probe {
 public:
  PassProbe(const Traffic& traffic, std::int64_t elements, const Arithmetic& arithmetic);
  double once() override;
  double calm(double rate) override { return multiply_add_.calm(rate); }
  // Whether arithmetic was the limit in most of the tries.
  bool arithmetic_binds() const { return 2 * bound_ > tries_; }

 private:
  BandwidthProbe memory_;
  MultiplyAddProbe multiply_add_;
  ExponentialProbe exponential_;
  Arithmetic arithmetic_;
  double bytes_;
  int tries_ = 0, bound_ = 0;
};

// Seconds since some fixed moment.
double now();

}  // namespace qkv::inline v0::bench
