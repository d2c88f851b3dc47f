// Random numbers. Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2,
// 3"): a pure function of key and counter, so any number can be had in any order by any thread.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>

namespace qkv::inline v0 {

using PhiloxBlock = std::array<std::uint32_t, 4>;

// Four uniform 32-bit numbers for (key, counter).
constexpr PhiloxBlock philox(std::uint64_t key, PhiloxBlock counter) {
  std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * counter[0],
                        p1 = std::uint64_t{0xCD9E8D57u} * counter[2];
    counter = {
        static_cast<std::uint32_t>(p1 >> 32) ^ counter[1] ^ k0, static_cast<std::uint32_t>(p1),
        static_cast<std::uint32_t>(p0 >> 32) ^ counter[3] ^ k1, static_cast<std::uint32_t>(p0)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return counter;
}

// 64-bit hash of a text (FNV-1a with a final mix) and of a pair: for keys of modules and for splits
// by content.
std::uint64_t hash_text(std::string_view text);
std::uint64_t hash_pair(std::uint64_t a, std::uint64_t b);

// A sequential stream of numbers over philox; copyable, its state is (key, position).
class Random {
 public:
  explicit Random(std::uint64_t seed, std::uint64_t stream = 0) : key_(hash_pair(seed, stream)) {}
  std::uint32_t next_u32();
  std::uint64_t next_u64() { return (std::uint64_t{next_u32()} << 32) | next_u32(); }
  double uniform();                      // [0, 1), 53 bits
  double normal();                       // Box-Muller
  std::uint64_t below(std::uint64_t n);  // uniform in [0, n), without bias; n > 0
  template <class It>
  void shuffle(It first, It last) {  // Fisher-Yates
    for (auto n = last - first; n > 1; --n)
      std::swap(first[n - 1],
                first[static_cast<std::ptrdiff_t>(below(static_cast<std::uint64_t>(n)))]);
  }

 private:
  std::uint64_t key_;
  std::uint64_t position_ = 0;
  PhiloxBlock block_{};
};

}  // namespace qkv::inline v0
