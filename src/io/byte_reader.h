// Reads numbers and strings from bytes of a stranger, never past their end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "base/check.h"

namespace qkv::inline v0::io {

class ByteReader {
 public:
  // `where` names the source in messages and outlives the reader.
  ByteReader(const std::byte* data, std::uint64_t size, const char* where)
      : data_(data), size_(size), where_(where) {}

  std::uint64_t position() const { return position_; }
  std::uint64_t left() const { return size_ - position_; }

  // A little-endian number. DataError at the end of the bytes.
  template <class T>
  T take(const char* what) {
    T value;
    std::memcpy(&value, skip(sizeof(T), what), sizeof(T));
    return value;
  }
  // A u64 length and so many bytes.
  std::string_view take_string(const char* what) {
    const auto length = take<std::uint64_t>(what);
    return {reinterpret_cast<const char*>(skip(length, what)), length};
  }
  const std::byte* skip(std::uint64_t bytes, const char* what) {
    require<DataError>(bytes <= left(), where_,
                       "expected {} bytes of {} at byte {}, got {} to the "
                       "end of the file",
                       bytes, what, position_, left());
    const std::byte* at = data_ + position_;
    position_ += bytes;
    return at;
  }

 private:
  const std::byte* data_;
  std::uint64_t size_, position_ = 0;
  const char* where_;
};

}  // namespace qkv::inline v0::io
