#include <array>

#include "text/token_model.h"
#include "text/unicode.h"

namespace qkv::inline v0::text {
namespace {

struct ByteTable {
  std::array<char32_t, 256> visible{};
  std::array<std::int16_t, 324> byte{};  // of a visible character; -1: none
};

const ByteTable& byte_table() {
  static const ByteTable table = [] {
    ByteTable t;
    t.byte.fill(-1);
    char32_t next = 0x100;
    for (int b = 0; b < 256; ++b) {
      const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      const char32_t c = printable ? static_cast<char32_t>(b) : next++;
      t.visible[static_cast<std::size_t>(b)] = c;
      t.byte[c] = static_cast<std::int16_t>(b);
    }
    return t;
  }();
  return table;
}

}  // namespace

char32_t visible_byte(unsigned char byte) { return byte_table().visible[byte]; }

std::string to_visible(std::string_view bytes) {
  std::string out;
  for (const char b : bytes) append_utf8(out, visible_byte(static_cast<unsigned char>(b)));
  return out;
}

bool from_visible(std::string_view visible, std::string& bytes) {
  bytes.clear();
  const ByteTable& table = byte_table();
  for (std::size_t at = 0; at < visible.size();) {
    const char32_t c = next_char(visible, at);
    if (c >= table.byte.size() || table.byte[c] < 0) return false;
    bytes += static_cast<char>(table.byte[c]);
  }
  return true;
}

}  // namespace qkv::inline v0::text
