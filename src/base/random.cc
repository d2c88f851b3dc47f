#include "base/random.h"

#include <cmath>

namespace qkv::inline v0 {
namespace {
constexpr std::uint64_t mix(std::uint64_t x) {  // finaliser of SplitMix64
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}
}  // namespace

std::uint64_t hash_text(std::string_view text) {
  std::uint64_t h = 0xCBF29CE484222325ull;
  for (const char c : text) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001B3ull;
  return mix(h);
}

std::uint64_t hash_pair(std::uint64_t a, std::uint64_t b) {
  return mix(mix(a + 0x9E3779B97F4A7C15ull) ^ (b + 0x9E3779B97F4A7C15ull));
}

std::uint32_t Random::next_u32() {
  const std::uint64_t i = position_++;
  if (i % 4 == 0) {
    block_ = philox(
        key_, {static_cast<std::uint32_t>(i / 4), static_cast<std::uint32_t>((i / 4) >> 32), 0, 0});
  }
  return block_[i % 4];
}

double Random::uniform() { return static_cast<double>(next_u64() >> 11) * 0x1p-53; }

double Random::normal() {
  const double u = 1.0 - uniform(), v = uniform();  // u in (0, 1]
  return std::sqrt(-2.0 * std::log(u)) * std::cos(6.283185307179586476925286766559 * v);
}

std::uint64_t Random::below(std::uint64_t n) {
  const std::uint64_t limit =
      n * (~std::uint64_t{0} / n);  // largest multiple of n that fits: reject above it
  std::uint64_t x = next_u64();
  while (x >= limit) x = next_u64();
  return x % n;
}

}  // namespace qkv::inline v0
