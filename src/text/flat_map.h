// A hash table from 64-bit keys to small values: open addressing, linear probing, built once, then
// only read. Its size is fixed at construction.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace qkv::inline v0::text {

inline constexpr std::uint64_t kHashSeed = 0xCBF29CE484222325ull;

// One step of an FNV-1a hash, so that the hashes of all prefixes of a word come from one pass.
constexpr std::uint64_t hash_step(std::uint64_t hash, char byte) {
  return (hash ^ static_cast<unsigned char>(byte)) * 0x100000001B3ull;
}

template <class Value>
class FlatMap {
 public:
  // `count` keys will be inserted at most.
  explicit FlatMap(std::size_t count = 0)
      : slots_(std::bit_ceil(count * 2 + 2)), shift_(64 - std::countr_zero(slots_.size())) {}

  // Keys may repeat (hashes of different texts): `find` walks all of them.
  void insert(std::uint64_t key, Value value) {
    std::size_t i = index(key);
    while (slots_[i].used) i = (i + 1) & (slots_.size() - 1);
    slots_[i] = {key, value, true};
  }

  // The value of `key`, made if absent.
  Value& operator[](std::uint64_t key) {
    std::size_t i = index(key);
    while (slots_[i].used && slots_[i].key != key) i = (i + 1) & (slots_.size() - 1);
    slots_[i].key = key;
    slots_[i].used = true;
    return slots_[i].value;
  }

  // The first value of `key` that `accept` takes; null if there is none.
  template <class Accept>
  const Value* find(std::uint64_t key, Accept accept) const {
    for (std::size_t i = index(key); slots_[i].used; i = (i + 1) & (slots_.size() - 1)) {
      if (slots_[i].key == key && accept(slots_[i].value)) return &slots_[i].value;
    }
    return nullptr;
  }
  const Value* find(std::uint64_t key) const {
    return find(key, [](const Value&) { return true; });
  }

 private:
  struct Slot {
    std::uint64_t key = 0;
    Value value{};
    bool used = false;
  };
  std::size_t index(std::uint64_t key) const {
    return static_cast<std::size_t>((key * 0x9E3779B97F4A7C15ull) >> shift_);
  }

  std::vector<Slot> slots_;
  int shift_;
};

}  // namespace qkv::inline v0::text
