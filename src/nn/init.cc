#include "nn/init.h"

#include <cmath>
#include <numbers>

#include "base/check.h"
#include "base/random.h"
#include "base/thread_pool.h"

namespace qkv::inline v0::nn {
namespace {

// (0, 1): never 0, so that its logarithm is finite.
double open_uniform(std::uint32_t high, std::uint32_t low) {
  const std::uint64_t bits = (std::uint64_t{high} << 21) ^ (low >> 11);
  return (static_cast<double>(bits & ((std::uint64_t{1} << 53) - 1)) + 0.5) * 0x1p-53;
}

// Two numbers for the pair of elements 2 i and 2 i + 1.
std::pair<double, double> random_pair(const Init& init, std::uint64_t key, std::uint64_t pair) {
  const PhiloxBlock block =
      philox(key, {static_cast<std::uint32_t>(pair), static_cast<std::uint32_t>(pair >> 32), 0, 0});
  const double a = open_uniform(block[0], block[1]), b = open_uniform(block[2], block[3]);
  if (init.kind == Init::Kind::kUniform)
    return {init.scale * (2 * a - 1), init.scale * (2 * b - 1)};
  const double radius = init.scale * std::sqrt(-2 * std::log(a)), angle = 2 * std::numbers::pi * b;
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

template <class T>
void fill_random(T* values, std::int64_t n, const Init& init, std::uint64_t key) {
  parallel_chunks((n + 1) / 2, 4096, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const auto [a, b] = random_pair(init, key, static_cast<std::uint64_t>(i));
      values[2 * i] = static_cast<T>(a);
      if (2 * i + 1 < n) values[2 * i + 1] = static_cast<T>(b);
    }
  });
}

}  // namespace

Init Init::xavier(std::int64_t fan_in, std::int64_t fan_out) {
  return uniform(std::sqrt(6.0 / static_cast<double>(fan_in + fan_out)));
}

Init Init::fan_in(std::int64_t fan_in) {
  return uniform(1.0 / std::sqrt(static_cast<double>(fan_in)));
}

void initialise(const Tensor& tensor, const Init& init, std::uint64_t seed, std::string_view name) {
  require<ShapeError>(tensor.is_contiguous(), "init",
                      "expected a contiguous tensor, got strides {}", tensor.strides().str());
  if (init.kind == Init::Kind::kZeros || init.kind == Init::Kind::kOnes) {
    tensor.fill(init.kind == Init::Kind::kOnes ? 1 : 0);
    return;
  }
  const std::uint64_t key = hash_pair(seed, hash_text(name));
  if (tensor.dtype() == DType::kFloat64) {
    fill_random(tensor.data<double>(), tensor.numel(), init, key);
  } else {
    fill_random(tensor.data<float>(), tensor.numel(), init, key);
  }
}

}  // namespace qkv::inline v0::nn
