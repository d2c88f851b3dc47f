#include "telemetry/tensorboard.h"

#include <array>
#include <bit>

namespace qkv::inline v0::telemetry {
namespace {

constexpr std::array<std::uint32_t, 256> crc_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t c = i;
    for (int bit = 0; bit < 8; ++bit) c = (c >> 1) ^ ((c & 1u) != 0 ? 0x82F63B78u : 0u);
    table[i] = c;
  }
  return table;
}

template <class T>
void put_fixed(std::string& out, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) out += static_cast<char>((value >> (8 * i)) & 0xFF);
}

void put_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>((value & 0x7F) | 0x80);
  out += static_cast<char>(value);
}

enum WireType : std::uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void put_key(std::string& out, std::uint32_t field, WireType type) {
  put_varint(out, field << 3 | type);
}

void put_bytes(std::string& out, std::uint32_t field, std::string_view bytes) {
  put_key(out, field, kBytes);
  put_varint(out, bytes.size());
  out += bytes;
}

void put_time(std::string& out, double wall_time) {
  put_key(out, 1, kFixed64);
  put_fixed(out, std::bit_cast<std::uint64_t>(wall_time));
}

// TFRecord's mask, so that a CRC of bytes that hold CRCs does not go wrong.
std::uint32_t masked_crc(std::string_view bytes) {
  return std::rotr(crc32c(bytes), 15) + 0xA282EAD8u;
}

std::string framed(std::string_view message) {
  std::string out;
  out.reserve(message.size() + 16);
  put_fixed<std::uint64_t>(out, message.size());
  put_fixed(out, masked_crc(out));
  out += message;
  put_fixed(out, masked_crc(message));
  return out;
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  static constexpr auto kTable = crc_table();
  std::uint32_t crc = ~0u;
  for (const char c : bytes)
    crc = kTable[(crc ^ static_cast<unsigned char>(c)) & 0xFF] ^ (crc >> 8);
  return ~crc;
}

std::string scalar_event(double wall_time, std::int64_t step, std::span<const Scalar> scalars) {
  std::string summary;
  for (const Scalar& scalar : scalars) {
    std::string value;
    put_bytes(value, 1, scalar.tag);
    put_key(value, 2, kFixed32);
    put_fixed(value, std::bit_cast<std::uint32_t>(static_cast<float>(scalar.value)));
    put_bytes(summary, 1, value);
  }
  std::string event;
  put_time(event, wall_time);
  put_key(event, 2, kVarint);
  put_varint(event, static_cast<std::uint64_t>(step));
  put_bytes(event, 5, summary);
  return framed(event);
}

std::string version_event(double wall_time) {
  std::string event;
  put_time(event, wall_time);
  put_bytes(event, 3, "brain.Event:2");
  return framed(event);
}

EventFile::EventFile(const std::filesystem::path& path, std::int64_t keep, double wall_time)
    : file_(path, keep) {
  if (file_.size() == 0) file_.append(version_event(wall_time));
}

void EventFile::add(double wall_time, std::int64_t step, std::span<const Scalar> scalars) {
  file_.append(scalar_event(wall_time, step, scalars));
}

}  // namespace qkv::inline v0::telemetry
