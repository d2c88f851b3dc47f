// Reading the wire format of protocol buffers, no more than SentencePiece's files need.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "base/check.h"

namespace qkv::inline v0::text {

// One field of a message: a number, or bytes.
struct ProtoField {
  std::uint64_t number = 0;
  std::uint64_t value = 0;  // wire types 0 (varint), 1 and 5 (fixed)
  std::string_view bytes;   // wire type 2

  bool flag() const { return value != 0; }
  std::int64_t integer() const { return static_cast<std::int64_t>(value); }
  float real() const { return std::bit_cast<float>(static_cast<std::uint32_t>(value)); }
};

// Goes through a message; views only, nothing is allocated. ModelError for bytes that are none.
class ProtoReader {
 public:
  explicit ProtoReader(std::string_view message) : rest_(message) {}

  bool next(ProtoField& field) {
    if (rest_.empty()) return false;
    const std::uint64_t key = varint();
    field = {};
    field.number = key >> 3;
    switch (key & 7) {
      case 0:
        field.value = varint();
        break;
      case 1:
        field.value = fixed<std::uint64_t>();
        break;
      case 2: {
        const std::uint64_t size = varint();
        need(size);
        field.bytes = rest_.substr(0, size);
        rest_.remove_prefix(size);
        break;
      }
      case 5:
        field.value = fixed<std::uint32_t>();
        break;
      default:
        fail<ModelError>("tokenizer", "expected a SentencePiece model, got a field of wire type {}",
                         key & 7);
    }
    return true;
  }

 private:
  void need(std::uint64_t size) const {
    require<ModelError>(size <= rest_.size(), "tokenizer",
                        "expected a SentencePiece model, got a field of {} bytes where {} are left",
                        size, rest_.size());
  }
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      need(1);
      const auto byte = static_cast<unsigned char>(rest_[0]);
      rest_.remove_prefix(1);
      value |= std::uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return value;
    }
    fail<ModelError>("tokenizer", "expected a SentencePiece model, got a number without end");
  }
  template <class T>
  T fixed() {
    need(sizeof(T));
    T value;
    std::memcpy(&value, rest_.data(), sizeof(T));
    rest_.remove_prefix(sizeof(T));
    return value;
  }

  std::string_view rest_;
};

}  // namespace qkv::inline v0::text
