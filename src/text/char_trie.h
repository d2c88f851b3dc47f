// Texts by their characters: finds all entries that a text begins with, shortest first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "text/unicode.h"

namespace qkv::inline v0::text {

// A trie whose edges lie in one hash table, keyed by (node, character). Built once, then only read.
class CharTrie {
 public:
  explicit CharTrie(std::size_t expected = 0) {
    std::size_t slots = 64;
    while (slots < expected * 4) slots *= 2;
    slots_.resize(slots);
  }

  // `text` must not be empty; a later value for the same text replaces the earlier one. `value` >=
  // 0.
  void insert(std::string_view text, std::int32_t value) {
    std::uint32_t node = 0;
    Slot* slot = nullptr;
    for (std::size_t at = 0; at < text.size();) {
      const std::uint64_t key = edge(node, next_char(text, at));
      slot = &place(key);
      if (slot->key != key) {
        if ((count_ + 1) * 5 > slots_.size() * 3) {
          grow();
          slot = &place(key);
        }
        ++count_;
        *slot = {key, static_cast<std::uint32_t>(count_), -1};
      }
      node = slot->child;
    }
    if (slot != nullptr) slot->value = value;
  }
  bool empty() const { return count_ == 0; }

  // Calls found(value, length in bytes) for each entry that `text` begins with.
  template <class Found>
  void prefixes(std::string_view text, Found found) const {
    std::uint32_t node = 0;
    for (std::size_t at = 0; at < text.size();) {
      const std::uint64_t key = edge(node, next_char(text, at));
      std::size_t i = index(key);
      while (slots_[i].key != key) {
        if (slots_[i].key == kEmpty) return;
        i = (i + 1) & (slots_.size() - 1);
      }
      if (slots_[i].value >= 0) found(slots_[i].value, at);
      node = slots_[i].child;
    }
  }

 private:
  static constexpr std::uint64_t kEmpty = ~std::uint64_t{0};
  struct Slot {
    std::uint64_t key = kEmpty;
    std::uint32_t child = 0;
    std::int32_t value = -1;
  };
  static std::uint64_t edge(std::uint32_t node, char32_t c) {
    return (std::uint64_t{node} << 21) | c;
  }
  std::size_t index(std::uint64_t key) const {
    const std::uint64_t hash = key * 0x9E3779B97F4A7C15ull;
    return static_cast<std::size_t>((hash >> 32) ^ hash) & (slots_.size() - 1);
  }
  Slot& place(std::uint64_t key) {
    std::size_t i = index(key);
    while (slots_[i].key != kEmpty && slots_[i].key != key) i = (i + 1) & (slots_.size() - 1);
    return slots_[i];
  }
  void grow() {
    std::vector<Slot> old(slots_.size() * 2);
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.key != kEmpty) place(slot.key) = slot;
    }
  }

  std::vector<Slot> slots_;
  std::size_t count_ = 0;  // nodes apart from the root
};

}  // namespace qkv::inline v0::text
