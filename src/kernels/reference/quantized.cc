#include "kernels/reference/quantized.h"

#include <cstring>
#include <vector>

#include "base/convert.h"
#include "kernels/quantized.h"

namespace qkv::inline v0::kernels::reference {
namespace {

float half_at(const std::uint8_t* p) {
  Float16 x;
  std::memcpy(&x.bits, p, sizeof(x.bits));
  return to_float(x);
}

std::uint32_t word_at(const std::uint8_t* p) {
  std::uint32_t word = 0;
  std::memcpy(&word, p, sizeof(word));
  return word;
}

// 32 elements of 4 bits: the low halves of 16 bytes, then the high ones.
int nibble(const std::uint8_t* bytes, int i) { return i < 16 ? bytes[i] & 15 : bytes[i - 16] >> 4; }

// Q4_0, Q4_1, Q5_0, Q5_1: d, perhaps a minimum, perhaps 32 fifth bits, and the nibbles.
void small_block(const std::uint8_t* block, bool has_minimum, bool has_fifth, float* y) {
  const float d = half_at(block), m = has_minimum ? half_at(block + 2) : 0;
  const std::uint8_t* rest = block + (has_minimum ? 4 : 2);
  const std::uint32_t fifth = has_fifth ? word_at(rest) : 0;
  const std::uint8_t* nibbles = rest + (has_fifth ? 4 : 0);
  const int middle = has_minimum ? 0 : has_fifth ? 16 : 8;
  for (int i = 0; i < 32; ++i) {
    const int q = nibble(nibbles, i) | static_cast<int>((fifth >> i & 1) << 4);
    const float scaled = static_cast<float>(q - middle) * d;
    y[i] = has_minimum ? scaled + m : scaled;
  }
}

void q80_block(const std::uint8_t* block, float* y) {
  const float d = half_at(block);
  for (int i = 0; i < 32; ++i)
    y[i] = static_cast<float>(static_cast<std::int8_t>(block[2 + i])) * d;
}

// Eight pairs of 6 bits in 12 bytes: the scale and the minimum of group g.
struct GroupScale {
  int scale, minimum;
};
GroupScale group_scale(const std::uint8_t* packed, int g) {
  if (g < 4) return {packed[g] & 63, packed[g + 4] & 63};
  return {(packed[g + 4] & 15) | (packed[g - 4] >> 6 << 4),
          (packed[g + 4] >> 4) | (packed[g] >> 6 << 4)};
}

// Q4_K and Q5_K: d, dmin, the scales, 8 bits of each of 32 columns (Q5_K), nibbles. Groups 2 c and
// 2 c + 1 share 32 bytes.
void k_block(const std::uint8_t* block, bool has_fifth, float* y) {
  const float d = half_at(block), dmin = half_at(block + 2);
  const std::uint8_t *packed = block + 4, *fifth = block + 16,
                     *nibbles = block + (has_fifth ? 48 : 16);
  for (int g = 0; g < 8; ++g) {
    const GroupScale s = group_scale(packed, g);
    const float scale = d * static_cast<float>(s.scale), low = dmin * static_cast<float>(s.minimum);
    for (int i = 0; i < 32; ++i) {
      const std::uint8_t byte = nibbles[g / 2 * 32 + i];
      int q = g % 2 == 0 ? byte & 15 : byte >> 4;
      if (has_fifth) q |= (fifth[i] >> g & 1) << 4;
      y[g * 32 + i] = scale * static_cast<float>(q) - low;
    }
  }
}

// Q6_K: 128 bytes of low nibbles, 64 bytes of upper bit pairs, 16 int8 scales, d; in two halves.
void q6k_block(const std::uint8_t* block, float* y) {
  const float d = half_at(block + 208);
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128, quarter = i % 128 / 32, column = i % 32;
    const std::uint8_t low = block[half * 64 + quarter % 2 * 32 + column];
    const std::uint8_t high = block[128 + half * 32 + column];
    const int q = (quarter < 2 ? low & 15 : low >> 4) | (high >> (2 * quarter) & 3) << 4;
    const auto scale = static_cast<std::int8_t>(block[192 + i / 16]);
    y[i] = d * static_cast<float>(scale) * static_cast<float>(q - 32);
  }
}

void one_block(BlockType type, const std::uint8_t* block, float* y) {
  switch (type) {
    case BlockType::kQ40:
      return small_block(block, false, false, y);
    case BlockType::kQ41:
      return small_block(block, true, false, y);
    case BlockType::kQ50:
      return small_block(block, false, true, y);
    case BlockType::kQ51:
      return small_block(block, true, true, y);
    case BlockType::kQ80:
      return q80_block(block, y);
    case BlockType::kQ4K:
      return k_block(block, false, y);
    case BlockType::kQ5K:
      return k_block(block, true, y);
    default:
      return q6k_block(block, y);
  }
}

float plain_element(RowType type, const std::uint8_t* row, std::int64_t i) {
  if (type == RowType::kFloat16) return half_at(row + 2 * i);
  if (type == RowType::kFloat32) {
    float x = 0;
    std::memcpy(&x, row + 4 * i, sizeof(x));
    return x;
  }
  BFloat16 x;
  std::memcpy(&x.bits, row + 2 * i, sizeof(x.bits));
  return to_float(x);
}

void unpack(const StoredRows& w, const float* /*halves*/, float* y) {
  for (std::int64_t r = 0; r < w.n; ++r) {
    const std::uint8_t* row = w.data + r * w.stride;
    if (is_block_type(w.type)) {
      dequantize(static_cast<BlockType>(w.type), row, w.k, y + r * w.k);
      continue;
    }
    for (std::int64_t i = 0; i < w.k; ++i) y[r * w.k + i] = plain_element(w.type, row, i);
  }
}

// Every element is one sum in double, in the order of k.
void multiply(const FewRowsProduct& p) {
  std::vector<float> row(static_cast<std::size_t>(p.w.k));
  for (std::int64_t n = 0; n < p.w.n; ++n) {
    unpack({p.w.type, p.w.data + n * p.w.stride, p.w.stride, 1, p.w.k}, p.halves, row.data());
    for (std::int64_t m = 0; m < p.m; ++m) {
      double sum = p.bias != nullptr ? static_cast<double>(p.bias[n]) : 0;
      for (std::int64_t i = 0; i < p.w.k; ++i)
        sum += static_cast<double>(row[static_cast<std::size_t>(i)]) *
               static_cast<double>(p.x[m * p.ldx + i]);
      p.y[m * p.ldy + n] = static_cast<float>(sum);
    }
  }
}

}  // namespace

const QuantizedKernels kQuantized = {multiply, unpack};

void dequantize(BlockType type, const std::uint8_t* blocks, std::int64_t n, float* y) {
  const BlockLayout layout = block_layout(type);
  for (std::int64_t i = 0; i < n / layout.elements; ++i)
    one_block(type, blocks + i * layout.bytes, y + i * layout.elements);
}

}  // namespace qkv::inline v0::kernels::reference
