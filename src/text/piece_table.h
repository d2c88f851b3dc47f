// Pieces of a vocabulary by their text.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/flat_map.h"

namespace qkv::inline v0::text {

// Built once for at most `count` pieces, then only read.
class PieceTable {
 public:
  explicit PieceTable(std::size_t count = 0) : map_(count) {}

  void insert(std::string_view piece, std::int32_t id) {
    map_.insert(hash_of(piece), {id, static_cast<std::uint32_t>(bytes_.size()),
                                 static_cast<std::uint32_t>(piece.size())});
    bytes_ += piece;
    longest_ = std::max(longest_, piece.size());
  }

  // The id of a piece (the first that was put in), or -1.
  std::int32_t find(std::string_view piece) const {
    if (piece.size() > longest_) return -1;
    const Entry* entry =
        map_.find(hash_of(piece), [&](const Entry& e) { return text_of(e) == piece; });
    return entry == nullptr ? -1 : entry->id;
  }

  // The longest piece at the beginning of `rest`: its id and length; length 0 if there is none.
  std::pair<std::int32_t, std::size_t> longest_prefix(std::string_view rest,
                                                      std::vector<std::uint64_t>& hashes) const {
    const std::size_t limit = std::min(longest_, rest.size());
    hashes.resize(limit);
    std::uint64_t hash = kHashSeed;
    for (std::size_t i = 0; i < limit; ++i) hashes[i] = hash = hash_step(hash, rest[i]);
    for (std::size_t n = limit; n > 0; --n) {
      if (n < rest.size() && (static_cast<unsigned char>(rest[n]) & 0xC0) == 0x80)
        continue;  // inside a character
      const Entry* entry =
          map_.find(hashes[n - 1], [&](const Entry& e) { return text_of(e) == rest.substr(0, n); });
      if (entry != nullptr) return {entry->id, n};
    }
    return {-1, 0};
  }

 private:
  struct Entry {
    std::int32_t id = 0;
    std::uint32_t begin = 0, size = 0;  // in bytes_
  };
  static std::uint64_t hash_of(std::string_view piece) {
    std::uint64_t hash = kHashSeed;
    for (const char c : piece) hash = hash_step(hash, c);
    return hash;
  }
  std::string_view text_of(const Entry& entry) const {
    return std::string_view(bytes_).substr(entry.begin, entry.size);
  }

  FlatMap<Entry> map_;
  std::string bytes_;
  std::size_t longest_ = 0;
};

}  // namespace qkv::inline v0::text
