// Matrix products: panels of B in the first-level cache, rows of A turned so that they are read in
// a run, a tile of C in registers. After Goto and van de Geijn, Anatomy of high-performance matrix
// multiplication (2008).
#include "kernels/product.h"

#include "kernels/simd/vec.h"

namespace qkv::inline v0::kernels::QKV_ISA {

extern const ProductKernels kProduct;

namespace {

// A tile of C: kTileRows x two registers, with two of B and one of A beside them.
constexpr int kTileRows = kVectorRegisters == 32 ? 12 : kLanes == 8 ? 6 : 4;
constexpr int kTileVectors = 2;
constexpr std::int64_t kPanel = kTileVectors * kLanes;
// Terms of one step of a sum: a panel of as many rows fills most of a first-level cache.
constexpr std::int64_t kDepth = 256;
// Rows of A and columns of C that stay in the second-level cache.
constexpr std::int64_t kRows = 256, kColumns = 512;

constexpr std::int64_t round_up_to(std::int64_t n, std::int64_t step) {
  return (n + step - 1) / step * step;
}

// k in equal steps of at most kDepth; a function of k alone.
QKV_INLINE std::int64_t depth_of_steps(std::int64_t k) {
  const std::int64_t steps = (k + kDepth - 1) / kDepth;
  return round_up_to((k + steps - 1) / steps, kLanes);
}

// m rows as tiles of nearly equal heights: no tile of a row or two that would wait for its sums.
struct Tiles {
  std::int64_t count, height, higher;  // the first `higher` tiles have a row more
  QKV_INLINE explicit Tiles(std::int64_t m)
      : count((m + kTileRows - 1) / kTileRows), height(m / count), higher(m % count) {}
  QKV_INLINE std::int64_t first(std::int64_t i) const {
    return i * height + (i < higher ? i : higher);
  }
  QKV_INLINE std::int64_t rows(std::int64_t i) const { return height + (i < higher ? 1 : 0); }
};

// Packed rows of tile i of `depth` terms begin here; stores may reach kLanes beyond their end.
QKV_INLINE std::int64_t tile_offset(const Tiles& tiles, std::int64_t i, std::int64_t depth) {
  return tiles.first(i) * depth + i * kLanes;
}
constexpr std::int64_t packed_rows_size(std::int64_t rows) {
  return rows * kDepth + (rows + 1) * kLanes;
}

// Lines of the cache that n floats fill.
constexpr std::int64_t kLine = 16;
constexpr std::int64_t lines_of(std::int64_t n) { return (n + kLine - 1) / kLine; }

// Memory that is fetched into the second-level cache while a tile is computed: `rows` runs of
// `lines` cache lines, `stride` floats apart. Nothing breaks where there is no memory.
struct Ahead {
  const float* from;
  std::int64_t rows, lines, stride;
};

struct Tile {
  const float* a;  // [depth][rows]
  const float* b;  // [depth][kPanel]
  std::int64_t depth;
  float* c;
  std::int64_t ldc, columns;
  const float* bias;  // null: none
  bool accumulate;    // add to what stands in c
  Ahead ahead;        // fetched meanwhile
};

template <int kHeight>
void compute_tile(const Tile& t) {
  F32 sum[kHeight][kTileVectors];
#pragma GCC unroll 12
  for (int r = 0; r < kHeight; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kTileVectors; ++v) sum[r][v] = zero();
  }
  const float *a = t.a, *b = t.b;
  const auto step = [&]() QKV_BODY {
    F32 right[kTileVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kTileVectors; ++v) right[v] = load(b + v * kLanes);
#pragma GCC unroll 12
    for (int r = 0; r < kHeight; ++r) {
      const F32 left = set(a[r]);
#pragma GCC unroll 2
      for (int v = 0; v < kTileVectors; ++v) sum[r][v] = fma(left, right[v], sum[r][v]);
    }
    a += kHeight;
    b += kPanel;
  };
  float* const c = t.c;
  const std::int64_t ldc = t.ldc;
  std::int64_t left = t.depth;
  for (std::int64_t r = 0; r < kHeight && left > 0; ++r, --left) {
    __builtin_prefetch(c + r * ldc, 1);
    __builtin_prefetch(c + r * ldc + kPanel - 1, 1);
    step();
  }
  const std::int64_t lines = t.ahead.rows * t.ahead.lines,
                     every = lines > 0 && lines < left ? left / lines : 1;
  const float* row = t.ahead.from;
  std::int64_t line = 0, wait = lines > 0 ? every : left;
  for (; left > 0; --left) {
    step();
    if (--wait == 0) {
      __builtin_prefetch(row + line * kLine, 0, 2);
      wait = every;
      if (++line == t.ahead.lines) {
        line = 0;
        row += t.ahead.stride;
      }
    }
  }
  const bool whole = t.columns >= kPanel, accumulate = t.accumulate;
#pragma GCC unroll 2
  for (int v = 0; v < kTileVectors; ++v) {
    const Mask there = first_lanes(t.columns - v * kLanes);
    if (t.bias != nullptr) {
      const F32 bias = load(t.bias + v * kLanes, there);
#pragma GCC unroll 12
      for (int r = 0; r < kHeight; ++r) sum[r][v] = sum[r][v] + bias;
    }
    float* to = c + v * kLanes;
    if (!whole) {
#pragma GCC unroll 12
      for (int r = 0; r < kHeight; ++r, to += ldc)
        store(to, accumulate ? sum[r][v] + load(to, there) : sum[r][v], there);
    } else if (accumulate) {
#pragma GCC unroll 12
      for (int r = 0; r < kHeight; ++r, to += ldc) store(to, sum[r][v] + load(to));
    } else {
#pragma GCC unroll 12
      for (int r = 0; r < kHeight; ++r, to += ldc) store(to, sum[r][v]);
    }
  }
}

template <int kHeight>
QKV_INLINE void compute_tile_of(std::int64_t rows, const Tile& t) {
  if (rows == kHeight) return compute_tile<kHeight>(t);
  if constexpr (kHeight > 1) compute_tile_of<kHeight - 1>(rows, t);
}

// kLanes terms of up to 4 kGroups rows become [terms][stride], four rows at a time. Whole quads are
// stored: what is too much in the last one is overwritten by the next term. Rows that are missing
// there are copies of others.
template <int kGroups>
QKV_INLINE void turn_block(const float* from, std::int64_t ld, std::int64_t rows,
                           std::int64_t terms, float* to, std::int64_t stride) {
  F32 quads[kGroups][4];
  const Mask there = first_lanes(terms);
#pragma GCC unroll 4
  for (int g = 0; g < kGroups; ++g) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const float* row = from + (4 * g + i < rows ? 4 * g + i : 0) * ld;
      quads[g][i] = terms >= kLanes ? load(row) : load(row, there);
    }
    transpose_quads(quads[g]);
  }
#pragma GCC unroll 16
  for (int k = 0; k < kLanes; ++k) {
    if (k >= terms) return;
#pragma GCC unroll 4
    for (int g = 0; g < kGroups; ++g) store_quad(to + k * stride + 4 * g, quads[g][k % 4], k / 4);
  }
}

template <int kGroups>
void turn_groups(const float* a, std::int64_t lda, std::int64_t rows, std::int64_t depth, float* to,
                 std::int64_t stride) {
  for (std::int64_t k = 0; k < depth; k += kLanes)
    turn_block<kGroups>(a + k, lda, rows, depth - k, to + k * stride, stride);
}

// Rows of A [rows, depth] become [depth][rows]. Stores reach up to three floats too far.
void turn_rows(const float* a, std::int64_t lda, std::int64_t rows, std::int64_t depth, float* to) {
  if (rows > 8) return turn_groups<3>(a, lda, rows, depth, to, rows);
  if (rows > 4) return turn_groups<2>(a, lda, rows, depth, to, rows);
  turn_groups<1>(a, lda, rows, depth, to, rows);
}

// Columns of dy [depth, rows] become [depth][rows], stored as above.
void gather_columns(const float* dy, std::int64_t ldy, std::int64_t rows, std::int64_t depth,
                    float* to) {
  const Mask there = first_lanes(rows);
  for (std::int64_t t = 0; t < depth; ++t, dy += ldy, to += rows) store(to, load(dy, there));
}

void pack_turned(const PanelPacking& p) {
  for (std::int64_t j = 0; j < p.n; j += kLanes) {
    float* to = p.packed + j / kPanel * kPanel * p.k + j % kPanel;
    turn_groups<kLanes / 4>(p.b + j * p.ldb, p.ldb, p.n - j, p.k, to, kPanel);
  }
}

void pack_straight(const PanelPacking& p) {
  for (std::int64_t k = 0; k < p.k; ++k) {
    const float* from = p.b + k * p.ldb;
    float* to = p.packed + k * kPanel;
    std::int64_t j = 0;
    for (; j + kPanel <= p.n; j += kPanel, to += kPanel * p.k) {
#pragma GCC unroll 2
      for (int v = 0; v < kTileVectors; ++v) store(to + v * kLanes, load(from + j + v * kLanes));
    }
    if (j < p.n) {
#pragma GCC unroll 2
      for (int v = 0; v < kTileVectors; ++v)
        store(to + v * kLanes, load(from + j + v * kLanes, first_lanes(p.n - j - v * kLanes)));
    }
  }
}

void pack(const PanelPacking& p) {
  if (!p.transpose) return pack_straight(p);
  if (p.n % kPanel != 0 && p.n % kPanel <= kLanes) {
    // The last register of the last panel is beyond the columns.
    float* last = p.packed + p.n / kPanel * kPanel * p.k;
    for (std::int64_t i = 0; i < kPanel * p.k; i += kLanes) store(last + i, zero());
  }
  pack_turned(p);
}

// Where the panel of column j begins, terms k and on; and what a tile of `count` fetches of it.
QKV_INLINE const float* panel_of(const PackedProduct& p, std::int64_t k, std::int64_t j) {
  if (p.packed != nullptr) return p.packed + j * p.k + k * kPanel;
  return p.transpose ? p.b + j * p.ldb + k : p.b + k * p.ldb + j;
}
QKV_INLINE Ahead share_of_panel(const PackedProduct& p, const float* panel, std::int64_t depth,
                                std::int64_t i, std::int64_t count) {
  if (p.packed != nullptr) {
    const std::int64_t lines = (depth * kPanel / kLine + count - 1) / count;
    return {panel + i * lines * kLine, 1, lines, 0};
  }
  const std::int64_t rows = ((p.transpose ? kPanel : depth) + count - 1) / count;
  return {panel + i * rows * p.ldb, rows, lines_of(p.transpose ? depth : kPanel), p.ldb};
}

// Rows of A meet the panels of columns j0 .. j0 + columns, t.depth terms of the sums from k on. The
// rows are turned beside the first panel, a tile at a time, while those of the next are fetched;
// beside the other panels the next one is, and in the end the first one of the next terms.
void multiply_step(const PackedProduct& p, const Tiles& tiles, const float* a, std::int64_t k,
                   std::int64_t begin, std::int64_t end, Tile t) {
  float *here = p.scratch, *turned_rows = here + kDepth * kPanel, *c = t.c;
  for (std::int64_t j = begin; j < end; j += kPanel) {
    t.b = panel_of(p, k, j);
    t.columns = end - j;
    if (p.packed == nullptr) {
      pack({t.b, p.ldb, p.transpose, t.depth, t.columns < kPanel ? t.columns : kPanel, here});
      t.b = here;
    }
    t.bias = k == 0 && p.bias != nullptr ? p.bias + j : nullptr;
    const float* next =
        j + kPanel < end ? panel_of(p, k, j + kPanel) : panel_of(p, k + t.depth, begin);
    for (std::int64_t i = 0; i < tiles.count; ++i) {
      const std::int64_t rows = tiles.rows(i);
      float* turned = turned_rows + tile_offset(tiles, i, t.depth);
      t.ahead = share_of_panel(p, next, t.depth, i, tiles.count);
      if (j == begin) {
        turn_rows(a + tiles.first(i) * p.lda, p.lda, rows, t.depth, turned);
        if (i + 1 < tiles.count)
          t.ahead = {a + tiles.first(i + 1) * p.lda, rows, lines_of(t.depth), p.lda};
      }
      t.a = turned;
      t.c = c + tiles.first(i) * t.ldc + j;
      compute_tile_of<kTileRows>(rows, t);
    }
  }
}

void multiply_rows(const PackedProduct& p, std::int64_t first, std::int64_t rows) {
  const std::int64_t step = depth_of_steps(p.k), width = step >= p.k ? p.n : kColumns;
  const Tiles tiles(rows);
  for (std::int64_t j = 0; j < p.n; j += width) {
    for (std::int64_t k = 0; k < p.k; k += step) {
      Tile t = {};
      t.depth = p.k - k < step ? p.k - k : step;
      t.c = p.c + first * p.ldc;
      t.ldc = p.ldc;
      t.accumulate = k > 0;
      multiply_step(p, tiles, p.a + first * p.lda + k, k, j, p.n - j < width ? p.n : j + width, t);
    }
  }
}

void multiply(const PackedProduct& p) {
  for (std::int64_t i = 0; i < p.m; i += kRows)
    multiply_rows(p, i, p.m - i < kRows ? p.m - i : kRows);
}

// As multiply_step, for t.depth tokens; the panels are packed one at a time.
void gradient_step(const GradientBlock& p, const Tiles& tiles, const float* dy, const float* x,
                   Tile t) {
  float *panel = p.scratch, *columns = panel + kDepth * kPanel;
  const std::int64_t share = (t.depth + tiles.count - 1) / tiles.count;
  t.b = panel;
  for (std::int64_t j = 0; j < p.k; j += kPanel) {
    t.columns = p.k - j;
    pack_straight({x + j, p.ldx, false, t.depth, t.columns < kPanel ? t.columns : kPanel, panel});
    const float* next = j + kPanel < p.k ? x + j + kPanel : x + t.depth * p.ldx;
    for (std::int64_t i = 0; i < tiles.count; ++i) {
      const std::int64_t rows = tiles.rows(i);
      float* gathered = columns + tile_offset(tiles, i, t.depth);
      t.ahead = {next + i * share * p.ldx, share, lines_of(kPanel), p.ldx};
      if (j == 0) {
        gather_columns(dy + tiles.first(i), p.ldy, rows, t.depth, gathered);
        if (i + 1 < tiles.count)  // a tile's last column: the first one's line is here already
          t.ahead = {dy + tiles.first(i + 2) - 1, t.depth, 1, p.ldy};
      }
      t.a = gathered;
      t.c = p.dw + tiles.first(i) * p.ldw + j;
      compute_tile_of<kTileRows>(rows, t);
    }
  }
}

void gradient(const GradientBlock& p) {
  const Tiles tiles(p.n);
  const std::int64_t step = depth_of_steps(p.t);
  for (std::int64_t i = 0; i < p.t; i += step) {
    Tile t = {};
    t.depth = p.t - i < step ? p.t - i : step;
    t.ldc = p.ldw;
    t.accumulate = p.accumulate || i > 0;
    gradient_step(p, tiles, p.dy + i * p.ldy, p.x + i * p.ldx, t);
  }
}

static_assert(kColumns % kPanel == 0 && kTileRows <= 12);

}  // namespace

const ProductKernels kProduct = {kPanel,
                                 packed_rows_size(kRows) + kDepth* kPanel,
                                 packed_rows_size(kGradientRows) + kDepth* kPanel,
                                 pack,
                                 multiply,
                                 gradient};

}  // namespace qkv::inline v0::kernels::QKV_ISA
