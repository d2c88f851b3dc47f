// Flash attention on bf16 products: the two engines that multiply packed operands, and what of a
// product a band needs.
#pragma once

#include "kernels/simd/attention_pairs.h"

namespace qkv::inline v0::kernels::QKV_ISA {

namespace {

// A part of a product: rows, columns (in floats) and depths (in words).
struct PairPart {
  std::int64_t row, rows, column, columns, begin, end;
};

// Dot products of pairs in registers.
struct DotEngine {
  static constexpr std::int64_t kRows = 1, kColumns = kLanes, kWords = 1;  // whole ones of these
  static constexpr std::int64_t kBandRows = 12;                            // rows of a band's steps

  void begin() {}
  void end() {}
  QKV_INLINE void run(const Product& p, const PairPart& part) {
    product_part<PairStep>(p, part.rows, part.columns / kLanes,
                           {part.row, part.column, part.begin, part.end, 0});
  }
};

// Tiles of 16 rows of 16 words. Unit: AMX, or its emulation in plain C++ (see attention_tiles.h and
// tests/kernels/simd/emulated_tiles.h).
template <class Unit>
struct TileEngine {
  static constexpr std::int64_t kRows = 16, kColumns = 16, kWords = 16;
  static constexpr std::int64_t kBandRows = 32;

  Unit unit;

  void begin() { unit.begin(); }
  void end() { unit.end(); }
  void run(const Product& p, const PairPart& part) {
    if (p.add && p.pre_columns) scale_columns(p, part);
    for (std::int64_t m = part.row; m < part.row + part.rows; m += 32)
      for (std::int64_t n = part.column; n < part.column + part.columns; n += 32) {
        const bool tall = m + 16 < part.row + part.rows, wide = n + 16 < part.column + part.columns;
        if (tall && wide)
          tiles<2, 2>(p, m, n, part.begin, part.end);
        else if (tall)
          tiles<2, 1>(p, m, n, part.begin, part.end);
        else if (wide)
          tiles<1, 2>(p, m, n, part.begin, part.end);
        else
          tiles<1, 1>(p, m, n, part.begin, part.end);
      }
  }

 private:
  QKV_INLINE static void scale_columns(const Product& p, const PairPart& part) {
    for (std::int64_t n = part.column; n < part.column + part.columns; n += kLanes) {
      const F32 factor = load(p.pre_columns + n);
      for (std::int64_t m = part.row; m < part.row + part.rows; ++m) {
        float* at = p.c + m * p.c_stride + n;
        store(at, load(at) * factor);
      }
    }
  }

  // kDown by kAcross tiles at row m and column n: the sums are tiles 0 to 3, the left operands 4
  // and 5, the right ones 6 and 7.
  template <int kDown, int kAcross>
  QKV_INLINE void tiles(const Product& p, std::int64_t m, std::int64_t n, std::int64_t begin,
                        std::int64_t end) {
    const std::int64_t a_stride = p.a_row, b_stride = p.b_stride, c_stride = p.c_stride;
    float* c = p.c + m * c_stride + n;
    float* below = c + 16 * c_stride;
    if (p.add) {
      unit.template load<0>(c, c_stride);
      if (kAcross == 2) unit.template load<1>(c + 16, c_stride);
      if (kDown == 2) unit.template load<2>(below, c_stride);
      if (kDown == 2 && kAcross == 2) unit.template load<3>(below + 16, c_stride);
    } else {
      unit.template clear<0>();
      if (kAcross == 2) unit.template clear<1>();
      if (kDown == 2) unit.template clear<2>();
      if (kDown == 2 && kAcross == 2) unit.template clear<3>();
    }
    const float* a = p.a + m * a_stride + begin;
    const float* b = p.b + begin * b_stride + n;
    for (std::int64_t k = begin; k < end; k += kWords, a += kWords, b += kWords * b_stride) {
      unit.template load<4>(a, a_stride);
      unit.template load<6>(b, b_stride);
      unit.template multiply<0, 4, 6>();
      if (kAcross == 2) {
        unit.template load<7>(b + 16, b_stride);
        unit.template multiply<1, 4, 7>();
      }
      if (kDown == 2) {
        unit.template load<5>(a + 16 * a_stride, a_stride);
        unit.template multiply<2, 5, 6>();
      }
      if (kDown == 2 && kAcross == 2) unit.template multiply<3, 5, 7>();
    }
    unit.template store<0>(c, c_stride);
    if (kAcross == 2) unit.template store<1>(c + 16, c_stride);
    if (kDown == 2) unit.template store<2>(below, c_stride);
    if (kDown == 2 && kAcross == 2) unit.template store<3>(below + 16, c_stride);
  }
};

}  // namespace

template <class Engine>
QKV_INLINE std::int64_t engine_rows(std::int64_t rows) {
  return round_up(rows, Engine::kRows);
}
// Words for a depth of `numbers`, as the engine takes them.
template <class Engine>
QKV_INLINE std::int64_t engine_words(std::int64_t numbers) {
  return round_up((numbers + 1) / 2, Engine::kWords);
}
// The words that hold depths [begin, end).
template <class Engine>
QKV_INLINE RowRange word_range(std::int64_t begin, std::int64_t end, std::int64_t words) {
  if (begin >= end) return {0, 0};
  const std::int64_t first = begin / 2 / Engine::kWords * Engine::kWords;
  return {first, smaller(engine_words<Engine>(end), words)};
}

template <class Engine>
[[gnu::noinline]] static void pairs_all(Engine& engine, const Product& p, std::int64_t rows,
                                        std::int64_t columns) {
  engine.run(p, {0, engine_rows<Engine>(rows), 0, columns, 0, p.depth});
}

// Row m sees columns [m + low, m + high]; others of its columns may be left alone.
template <class Engine>
[[gnu::noinline]] static void pairs_by_columns(Engine& engine, const Product& p, std::int64_t rows,
                                               std::int64_t columns, Band band) {
  if (is_everything(band)) return pairs_all(engine, p, rows, columns);
  for (std::int64_t m = 0; m < rows; m += Engine::kBandRows) {
    const std::int64_t height = smaller(Engine::kBandRows, rows - m);
    const std::int64_t begin =
        clamp_to(m + band.low, 0, columns) / Engine::kColumns * Engine::kColumns;
    const std::int64_t end =
        round_up(clamp_to(m + height + band.high, 0, columns), Engine::kColumns);
    if (begin < end)
      engine.run(p, {m, engine_rows<Engine>(height), begin, end - begin, 0, p.depth});
  }
}

// Column n needs depths [n + low, n + high] (in numbers, not words).
template <class Engine>
[[gnu::noinline]] static void pairs_by_depth_of_columns(Engine& engine, const Product& p,
                                                        std::int64_t rows, std::int64_t columns,
                                                        Band band) {
  if (is_everything(band)) return pairs_all(engine, p, rows, columns);
  for (std::int64_t n = 0; n < columns; n += 32) {
    const std::int64_t width = smaller(32, columns - n);
    const RowRange words =
        word_range<Engine>(clamp_to(n + band.low, 0, 2 * p.depth),
                           clamp_to(n + width + band.high, 0, 2 * p.depth), p.depth);
    engine.run(p, {0, engine_rows<Engine>(rows), n, width, words.begin, words.end});
  }
}

// Row m needs depths [m + low, m + high] (in numbers, not words).
template <class Engine>
[[gnu::noinline]] static void pairs_by_depth_of_rows(Engine& engine, const Product& p,
                                                     std::int64_t rows, std::int64_t columns,
                                                     Band band) {
  if (is_everything(band)) return pairs_all(engine, p, rows, columns);
  for (std::int64_t m = 0; m < rows; m += Engine::kBandRows) {
    const std::int64_t height = smaller(Engine::kBandRows, rows - m);
    const RowRange words =
        word_range<Engine>(clamp_to(m + band.low, 0, 2 * p.depth),
                           clamp_to(m + height + band.high, 0, 2 * p.depth), p.depth);
    engine.run(p, {m, engine_rows<Engine>(height), 0, columns, words.begin, words.end});
  }
}

}  // namespace qkv::inline v0::kernels::QKV_ISA
