// Flash attention on bf16 products: pairs of numbers in words of 32 bits, and how operands are
// packed into them.
//
// A product takes rows of words along its depth on the left, and on the right one row of words per
// pair of depths, whose lanes are columns: what a dot product of pairs takes in registers, and what
// tiles take as they are. Words lie in memory of floats, written and read as bits.
#pragma once

#include "kernels/simd/attention_narrow.h"
#include "kernels/simd/attention_tile.h"

namespace qkv::inline v0::kernels::QKV_ISA {

constexpr std::int64_t kPairBlock = 32;  // keys are packed in whole ones of these

QKV_INLINE F32 low_half(F32 words) { return as_f32(shift_left<16>(as_u32(words))); }
QKV_INLINE F32 high_half(F32 words) { return as_f32(as_u32(words) & set(0xFFFF0000u)); }

// Words of two numbers each, rounded to nearest even; `low` are the first of the pairs.
#if defined(QKV_ISA_avx512_bf16)
QKV_INLINE F32 pair_up(F32 low, F32 high) {
  constexpr int kFirst = 16 << 16, kStep = 0x00010001;  // word i: numbers i and 16 + i
  const __m512i order = _mm512_setr_epi32(
      kFirst, kFirst + kStep, kFirst + 2 * kStep, kFirst + 3 * kStep, kFirst + 4 * kStep,
      kFirst + 5 * kStep, kFirst + 6 * kStep, kFirst + 7 * kStep, kFirst + 8 * kStep,
      kFirst + 9 * kStep, kFirst + 10 * kStep, kFirst + 11 * kStep, kFirst + 12 * kStep,
      kFirst + 13 * kStep, kFirst + 14 * kStep, kFirst + 15 * kStep);
  return {_mm512_castsi512_ps(
      _mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh(high.v, low.v)))};
}
#else
QKV_INLINE F32 pair_up(F32 low, F32 high) {
  return as_f32(narrow_brain(low) | shift_left<16>(narrow_brain(high)));
}
#endif

// Words of the numbers of a and then b, rounded to nearest even.
#if defined(QKV_ISA_avx512_bf16)
QKV_INLINE F32 join_numbers(F32 a, F32 b) { return {(__m512)_mm512_cvtne2ps_pbh(b.v, a.v)}; }
#else
QKV_INLINE F32 join_numbers(F32 a, F32 b) {
  std::uint32_t numbers[2 * kLanes], words[kLanes];
  store(numbers, narrow_brain(a));
  store(numbers + kLanes, narrow_brain(b));
  for (int i = 0; i < kLanes; ++i) words[i] = numbers[2 * i] | numbers[2 * i + 1] << 16;
  return as_f32(load(words));
}
#endif

// c + the products of both halves. As VDPBF16PS: denormal numbers count as zero.
struct PairStep {
#if defined(QKV_ISA_avx512_bf16)
  QKV_INLINE static F32 add(F32 a, F32 b, F32 c) {
    return {_mm512_dpbf16_ps(c.v, (__m512bh)a.v, (__m512bh)b.v)};
  }
#else
  QKV_INLINE static F32 add(F32 a, F32 b, F32 c) {
    return fma(low_half(a), low_half(b), fma(high_half(a), high_half(b), c));
  }
#endif
};

// The first `count` 16-bit numbers as words, zeros behind them; nothing else is touched.
#if defined(QKV_ISA_avx512)
QKV_INLINE F32 load_words(const std::uint16_t* p, std::int64_t count) {
  const std::uint32_t lanes = count >= 32  ? 0xFFFFFFFFu
                              : count <= 0 ? 0u
                                           : (1u << static_cast<std::uint32_t>(count)) - 1;
  return {_mm512_castsi512_ps(_mm512_maskz_loadu_epi16(lanes, p))};
}
#else
QKV_INLINE F32 load_words(const std::uint16_t* p, std::int64_t count) {
  std::uint32_t words[kLanes] = {};
  for (std::int64_t i = 0; i < smaller(count, 2 * kLanes); ++i)
    words[i / 2] |= static_cast<std::uint32_t>(p[i]) << (i % 2 * 16);
  return as_f32(load(words));
}
#endif

QKV_INLINE NarrowRows rows_from(NarrowRows rows, std::int64_t first) {
  return {rows.type, rows.data + first * rows.stride, rows.stride};
}

// A part of an operand: rows of `depth` numbers, and how many rows the packed form has.
struct PackedRows {
  std::int64_t rows, depth, padded;
};

// Rows as rows of `width` words (a multiple of 16), zeros behind them.
QKV_INLINE void pack_rows(NarrowRows from, const PackedRows& size, float* to, std::int64_t width) {
  for (std::int64_t r = 0; r < size.rows; ++r)
    for (std::int64_t d = 0; d < width; d += kLanes)
      store(to + r * width + d,
            load_words(from.data + r * from.stride + 2 * d, size.depth - 2 * d));
  for (std::int64_t at = size.rows * width; at < size.padded * width; at += kLanes)
    store(to + at, zero());
}

// Row r of the result: the numbers of rows 2 r and 2 r + 1 as words, `width` of them (a multiple of
// 16), zeros behind and below.
QKV_INLINE void pack_row_pairs(NarrowRows from, const PackedRows& size, float* to,
                               std::int64_t width) {
  for (std::int64_t r = 0; r < size.padded; r += 2) {
    const std::uint16_t* row = from.data + r * from.stride;
    for (std::int64_t d = 0; d < width; d += kLanes) {
      const U32 low = load_narrow(row + d, r < size.rows ? size.depth - d : 0);
      const U32 high = load_narrow(row + from.stride + d, r + 1 < size.rows ? size.depth - d : 0);
      store(to + r / 2 * width + d, as_f32(low | shift_left<16>(high)));
    }
  }
}

// to[c * to_stride + r] = from[r * from_stride + c], rows and columns in whole 16s. Moves bits.
struct WordBlock {
  const float* from;
  std::int64_t from_stride, rows, columns;
};
[[maybe_unused, gnu::noinline]] static void transpose_words(const WordBlock& b, float* to,
                                                            std::int64_t to_stride) {
  for (std::int64_t first = 0; first < b.rows; first += kLanes) {
    const float* row[kLanes];
    for (int i = 0; i < kLanes; ++i) row[i] = b.from + (first + i) * b.from_stride;
    for (std::int64_t c = 0; c < b.columns; c += 4) {
      F32 r[4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) r[i] = load_quads(row + i, c);
      transpose_quads(r);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) store(to + (c + i) * to_stride + first, r[i]);
    }
  }
}

// The halves of words that hold infinity or NaN, all bits of them set.
QKV_INLINE U32 special_halves(U32 words) {
  const U32 low = set(0x7F80u), high = set(0x7F800000u), none = set(0u);
  return select_bits((words & low) == low, set(0xFFFFu), none) |
         select_bits((words & high) == high, set(0xFFFF0000u), none);
}

// Infinity and NaN in packed operands. A product takes all numbers but these as it always does;
// what is special is then added by number, and only where its coefficient is not zero. So what is
// hidden changes no bit, and what is seen is passed on.
//
// Takes special numbers out of words, `count` a multiple of kLanes; whether there were none.
QKV_INLINE bool take_specials_out(float* words, std::int64_t count) {
  Mask any_special = first_lanes(0);
  for (std::int64_t i = 0; i < count; i += kLanes) {
    const U32 word = as_u32(load(words + i)), special = special_halves(word);
    any_special = any_special | ~(special == set(0u));
    if (any(any_special)) store(words + i, as_f32(word & (special ^ set(0xFFFFFFFFu))));
  }
  return !any(any_special);
}
// Leaves nothing else in them.
QKV_INLINE void leave_specials(float* words, std::int64_t count) {
  for (std::int64_t i = 0; i < count; i += kLanes) {
    const U32 word = as_u32(load(words + i));
    store(words + i, as_f32(word & special_halves(word)));
  }
}

// Adds the products of numbers that are both not zero: of coefficients, and of specials.
[[maybe_unused, gnu::noinline]] static void add_specials(const Product& p, std::int64_t rows,
                                                         std::int64_t vectors) {
  for (std::int64_t m = 0; m < rows; ++m)
    for (std::int64_t n = 0; n < vectors * kLanes; n += kLanes) {
      float* at = p.c + m * p.c_stride + n;
      F32 c = load(at);
      for (std::int64_t k = 0; k < p.depth; ++k) {
        const F32 a = set(p.a[m * p.a_row + k]), b = load(p.b + k * p.b_stride + n);
        const Mask low = (low_half(a) != zero()) & (low_half(b) != zero());
        const Mask high = (high_half(a) != zero()) & (high_half(b) != zero());
        c = select(low, fma(low_half(a), low_half(b), c), c);
        c = select(high, fma(high_half(a), high_half(b), c), c);
      }
      store(at, c);
    }
}

}  // namespace qkv::inline v0::kernels::QKV_ISA
