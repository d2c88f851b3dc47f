// Products with matrices that stay in blocks. Lanes run along k: each block is widened once in
// registers and multiplied with up to four rows of x.
#include "kernels/quantized.h"

#include "kernels/reference/quantized.h"
#include "kernels/simd/vec_bytes.h"

namespace qkv::inline v0::kernels::QKV_ISA {
extern const QuantizedKernels kQuantized;
namespace {

// How far ahead of the arithmetic the lines of W are asked for.
constexpr std::int64_t kAhead = 2048;

QKV_INLINE std::uint32_t half_bits(const std::uint8_t* p) {
  std::uint16_t bits;
  __builtin_memcpy(&bits, p, sizeof(bits));
  return bits;
}
QKV_INLINE std::uint32_t word(const std::uint8_t* p) {
  std::uint32_t bits;
  __builtin_memcpy(&bits, p, sizeof(bits));
  return bits;
}

// Each type calls body(i, w) with the elements i .. i + kLanes of a block, i in any order but
// always the same one.
struct Q40 {
  static constexpr int kElements = 32, kBytes = 18;
  template <class Body>
  QKV_INLINE static void block(const std::uint8_t* p, const float* halves, Body body) {
    const F32 d = set(halves[half_bits(p)]);
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += kLanes) {
      const U32 bytes = load_bytes(p + 2 + i);
      body(i, d * low_nibbles<-8>(bytes));
      body(16 + i, d * low_nibbles<-8>(shift_right<4>(bytes)));
    }
  }
};

struct Q41 {
  static constexpr int kElements = 32, kBytes = 20;
  template <class Body>
  QKV_INLINE static void block(const std::uint8_t* p, const float* halves, Body body) {
    const std::uint32_t both = word(p);
    const F32 d = set(halves[both & 0xFFFF]), m = set(halves[both >> 16]);
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += kLanes) {
      const U32 bytes = load_bytes(p + 4 + i);
      body(i, fma(d, low_nibbles<0>(bytes), m));
      body(16 + i, fma(d, low_nibbles<0>(shift_right<4>(bytes)), m));
    }
  }
};

struct Q80 {
  static constexpr int kElements = 32, kBytes = 34;
  template <class Body>
  QKV_INLINE static void block(const std::uint8_t* p, const float* halves, Body body) {
    const F32 d = set(halves[half_bits(p)]);
#pragma GCC unroll 8
    for (int i = 0; i < 32; i += kLanes) body(i, d * load_signed_bytes(p + 2 + i));
  }
};

struct Q4K {
  static constexpr int kElements = 256, kBytes = 144;
  template <class Body>
  QKV_INLINE static void block(const std::uint8_t* p, const float* halves, Body body) {
    // Eight scales and eight minima of six bits: the first four of each in one byte each, the
    // others split.
    const std::uint32_t a = word(p + 4), b = word(p + 8), c = word(p + 12);
    const std::uint32_t words[4] = {
        a & 0x3F3F3F3Fu, (c & 0x0F0F0F0Fu) | (a >> 6 & 0x03030303u) << 4, b & 0x3F3F3F3Fu,
        (c >> 4 & 0x0F0F0F0Fu) | (b >> 6 & 0x03030303u) << 4};
    float factors[16];
    const F32 d = set(halves[half_bits(p)]), minus = set(-halves[half_bits(p + 2)]);
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += kLanes)
      store(factors + i, to_f32(bytes_of_words(words, i)) * select(first_lanes(8 - i), d, minus));
#pragma GCC unroll 4
    for (int pair = 0; pair < 4; ++pair) {
      const F32 low_d = set(factors[2 * pair]), low_m = set(factors[8 + 2 * pair]),
                high_d = set(factors[2 * pair + 1]), high_m = set(factors[9 + 2 * pair]);
#pragma GCC unroll 8
      for (int i = 0; i < 32; i += kLanes) {
        const U32 bytes = load_bytes(p + 16 + 32 * pair + i);
        body(64 * pair + i, fma(low_d, low_nibbles<0>(bytes), low_m));
        body(64 * pair + 32 + i, fma(high_d, low_nibbles<0>(shift_right<4>(bytes)), high_m));
      }
    }
  }
};

struct Q6K {
  static constexpr int kElements = 256, kBytes = 210;
  template <class Body>
  QKV_INLINE static void block(const std::uint8_t* p, const float* halves, Body body) {
    float factors[16], shifts[16];  // s and -32 s of each group of 16
    const F32 d = set(halves[half_bits(p + 208)]), middle = set(-32.0F);
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += kLanes) {
      const F32 scale = d * load_signed_bytes(p + 192 + i);
      store(factors + i, scale);
      store(shifts + i, middle * scale);
    }
    const U32 low_bits = set(15u), high_bits = set(0x30u);
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
#pragma GCC unroll 8
      for (int i = 0; i < 32; i += kLanes) {
        const U32 a = load_bytes(p + 64 * half + i), b = load_bytes(p + 64 * half + 32 + i),
                  h = load_bytes(p + 128 + 32 * half + i);
        const U32 q[4] = {(a & low_bits) | (shift_left<4>(h) & high_bits),
                          (b & low_bits) | (shift_left<2>(h) & high_bits),
                          shift_right<4>(a) | (h & high_bits),
                          shift_right<4>(b) | (shift_right<2>(h) & high_bits)};
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) {
          const int group = 8 * half + 2 * j + i / 16;
          body(128 * half + 32 * j + i, fma(set(factors[group]), to_f32(q[j]), set(shifts[group])));
        }
      }
    }
  }
};

// Types that are rarely met: a block is written out by its definition first.
template <BlockType kType>
struct Rare {
  static constexpr int kElements = block_layout(kType).elements, kBytes = block_layout(kType).bytes;
  template <class Body>
  QKV_INLINE static void block(const std::uint8_t* p, const float*, Body body) {
    float values[kElements];
    reference::dequantize(kType, p, kElements, values);
    for (int i = 0; i < kElements; i += 2 * kLanes) {
      body(i, load(values + i));
      body(i + kLanes, load(values + i + kLanes));
    }
  }
};

// Plain numbers in steps of 32, the last perhaps with zeros behind it.
struct Float32 {
  static constexpr int kElements = 32, kBytes = 128;
  template <class Body>
  QKV_INLINE static void block(const std::uint8_t* p, const float*, Body body) {
    float values[kLanes];
#pragma GCC unroll 8
    for (int i = 0; i < 32; i += kLanes) {
      __builtin_memcpy(values, p + 4 * i, sizeof(values));  // rows may lie at any byte
      body(i, load(values));
    }
  }
};
struct BFloat16Rows {
  static constexpr int kElements = 32, kBytes = 64;
  template <class Body>
  QKV_INLINE static void block(const std::uint8_t* p, const float*, Body body) {
#pragma GCC unroll 8
    for (int i = 0; i < 32; i += kLanes) body(i, load_bfloat16(p + 2 * i));
  }
};
struct Float16Rows {
  static constexpr int kElements = 32, kBytes = 64;
  template <class Body>
  QKV_INLINE static void block(const std::uint8_t* p, const float* halves, Body body) {
#pragma GCC unroll 8
    for (int i = 0; i < 32; i += kLanes) body(i, load_float16(p + 2 * i, halves));
  }
};

// kRows rows of W from n on with kX rows of x from m on. Two sums per element: vectors at even and
// at odd places of a block. The order is the same whatever kRows and kX.
template <class Type, int kRows, int kX>
QKV_INLINE void multiply_rows(const FewRowsProduct& p, std::int64_t n, std::int64_t m) {
  F32 sums[kRows][kX][2];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int j = 0; j < kX; ++j) sums[r][j][0] = sums[r][j][1] = zero();
  const std::uint8_t* w[kRows];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) w[r] = p.w.data + (n + r) * p.w.stride;
  const float* x[kX];
#pragma GCC unroll 8
  for (int j = 0; j < kX; ++j) x[j] = p.x + (m + j) * p.ldx;

  const auto add = [&](const std::uint8_t* const* rows, const float* const* columns) QKV_BODY {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      Type::block(rows[r], p.halves, [&](int i, F32 value) QKV_BODY {
#pragma GCC unroll 8
        for (int j = 0; j < kX; ++j) {
          F32& sum = sums[r][j][i / (kLanes >= 16 ? 16 : kLanes) & 1];
          sum = fma(value, load(columns[j] + i), sum);
        }
      });
    }
  };
  const std::int64_t blocks = p.w.k / Type::kElements;
  for (std::int64_t b = 0; b < blocks; ++b) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
      for (int line = 0; line < Type::kBytes; line += 64) __builtin_prefetch(w[r] + kAhead + line);
    add(w, x);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) w[r] += Type::kBytes;
#pragma GCC unroll 8
    for (int j = 0; j < kX; ++j) x[j] += Type::kElements;
  }
  const std::int64_t rest = p.w.k - blocks * Type::kElements;
  if (rest > 0) {  // plain types only
    std::uint8_t bytes[kRows][Type::kBytes] = {};
    float values[kX][Type::kElements] = {};
    const std::uint8_t* last_w[kRows];
    const float* last_x[kX];
    for (int r = 0; r < kRows; ++r) {
      __builtin_memcpy(bytes[r], w[r],
                       static_cast<std::size_t>(rest * (Type::kBytes / Type::kElements)));
      last_w[r] = bytes[r];
    }
    for (int j = 0; j < kX; ++j) {
      __builtin_memcpy(values[j], x[j], static_cast<std::size_t>(rest) * sizeof(float));
      last_x[j] = values[j];
    }
    add(last_w, last_x);
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int j = 0; j < kX; ++j)
      p.y[(m + j) * p.ldy + n + r] =
          sum(sums[r][j][0] + sums[r][j][1]) + (p.bias != nullptr ? p.bias[n + r] : 0.0F);
}

// kX rows of x from m on with all of W, as many rows of W at a time as there are registers for:
// they share the loads of x, and their sums do not wait for each other.
template <class Type, int kX>
void multiply_some(const FewRowsProduct& p, std::int64_t m) {
  constexpr int kRows = kVectorRegisters >= 32 ? (kX == 1 ? 4 : 2) : (kX <= 2 ? 2 : 1);
  std::int64_t n = 0;
  for (; n + kRows <= p.w.n; n += kRows) multiply_rows<Type, kRows, kX>(p, n, m);
  for (; n < p.w.n; ++n) multiply_rows<Type, 1, kX>(p, n, m);
}

template <class Type>
void multiply_all(const FewRowsProduct& p) {
  std::int64_t m = 0;
  for (; m + 4 <= p.m; m += 4) multiply_some<Type, 4>(p, m);
  if (p.m - m == 3) multiply_some<Type, 3>(p, m);
  if (p.m - m == 2) multiply_some<Type, 2>(p, m);
  if (p.m - m == 1) multiply_some<Type, 1>(p, m);
}

template <class Type>
void unpack_all(const StoredRows& w, const float* halves, float* y) {
  for (std::int64_t r = 0; r < w.n; ++r, y += w.k) {
    const std::uint8_t* p = w.data + r * w.stride;
    std::int64_t k = 0;
    for (; k + Type::kElements <= w.k; k += Type::kElements, p += Type::kBytes)
      Type::block(p, halves, [&](int i, F32 value) QKV_BODY { store(y + k + i, value); });
    if (k == w.k) continue;
    std::uint8_t bytes[Type::kBytes] = {};
    float values[Type::kElements];
    __builtin_memcpy(bytes, p,
                     static_cast<std::size_t>((w.k - k) * (Type::kBytes / Type::kElements)));
    Type::block(bytes, halves, [&](int i, F32 value) QKV_BODY { store(values + i, value); });
    __builtin_memcpy(y + k, values, static_cast<std::size_t>(w.k - k) * sizeof(float));
  }
}

// Calls f with a value of the type's struct.
template <class F>
QKV_INLINE void with_type(RowType type, F f) {
  switch (type) {
    case RowType::kQ40:
      return f(Q40{});
    case RowType::kQ41:
      return f(Q41{});
    case RowType::kQ50:
      return f(Rare<BlockType::kQ50>{});
    case RowType::kQ51:
      return f(Rare<BlockType::kQ51>{});
    case RowType::kQ80:
      return f(Q80{});
    case RowType::kQ4K:
      return f(Q4K{});
    case RowType::kQ5K:
      return f(Rare<BlockType::kQ5K>{});
    case RowType::kQ6K:
      return f(Q6K{});
    case RowType::kFloat32:
      return f(Float32{});
    case RowType::kBFloat16:
      return f(BFloat16Rows{});
    case RowType::kFloat16:
      return f(Float16Rows{});
  }
}

void multiply(const FewRowsProduct& p) {
  with_type(p.w.type, [&](auto type) QKV_BODY { multiply_all<decltype(type)>(p); });
}

void unpack(const StoredRows& w, const float* halves, float* y) {
  with_type(w.type, [&](auto type) QKV_BODY { unpack_all<decltype(type)>(w, halves, y); });
}

}  // namespace

const QuantizedKernels kQuantized = {multiply, unpack};

}  // namespace qkv::inline v0::kernels::QKV_ISA
