// Initial values of parameters. docs/numerics.md says which parameter gets which, and why.
#pragma once

#include <cstdint>
#include <string_view>

#include "qkv/tensor.h"

namespace qkv::inline v0::nn {

struct Init {
  enum class Kind { kZeros, kOnes, kNormal, kUniform };
  Kind kind = Kind::kZeros;
  double scale = 0;  // kNormal: standard deviation; kUniform: bound

  static Init zeros() { return {Kind::kZeros, 0}; }
  static Init ones() { return {Kind::kOnes, 0}; }
  static Init normal(double deviation) { return {Kind::kNormal, deviation}; }
  static Init uniform(double bound) { return {Kind::kUniform, bound}; }
  static Init xavier(
      std::int64_t fan_in,
      std::int64_t fan_out);                // Glorot and Bengio 2010: uniform, sqrt(6 / (in + out))
  static Init fan_in(std::int64_t fan_in);  // uniform, 1 / sqrt(in): torch.nn.Linear's
};

// Fills a contiguous fp32 or fp64 tensor. Element i is a pure function of (seed, name, i): the same
// for any number of threads and any order of parameters. fp32 values are the fp64 ones, rounded.
// Thread-safe.
void initialise(const Tensor& tensor, const Init& init, std::uint64_t seed, std::string_view name);

}  // namespace qkv::inline v0::nn
