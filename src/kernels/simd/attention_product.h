// Flash attention: the one product kernel, over whole tiles, bands of them, or what is selected.
#pragma once

#include "kernels/simd/attention_pack.h"

namespace qkv::inline v0::kernels::QKV_ISA {

// c[m][n] = post[m] * (c[m][n] * pre[m] + sum_k a(m, k) b[k][n]), n in registers. The elements of a
// and b are floats, or words of two bf16 numbers each whose products are summed (see Step).
struct Product {
  const float* a;
  std::int64_t a_row, a_depth;  // a(m, k) = a[m * a_row + k * a_depth]
  const float* b;
  std::int64_t b_stride;
  float* c;
  std::int64_t c_stride;
  std::int64_t depth;
  const float* pre;                    // null: 1; only with `add`
  const float* post;                   // null: 1
  bool add;                            // false: c is overwritten
  const float* pre_columns = nullptr;  // factors of columns like pre
};

// What one step along the depth adds.
struct FloatStep {
  QKV_INLINE static F32 add(F32 a, F32 b, F32 c) { return fma(a, b, c); }
};

// Index x of one side sees [x + low, x + high] of the other (both in tile coordinates).
struct Band {
  std::int64_t low, high;
};
constexpr std::int64_t kFar = std::int64_t{1} << 40;
constexpr Band kEverything = {-kFar, kFar};
constexpr std::int64_t kFlashFar = std::int64_t{1} << 20;  // beyond any tile, and fits 32 bits

// Registers of a column group, and rows that go with them so that the accumulators fit.
constexpr int kMaxVectors = kVectorRegisters >= 32 ? 4 : 2;
constexpr int rows_for(int vectors) {
  if (kVectorRegisters >= 32) return vectors == 4 ? 6 : 8;
  return kLanes == 4 ? (vectors == 2 ? 4 : 8) : (vectors == 2 ? 6 : 8);
}

// A part of a product: rows from `row` on, registers from `column` (in floats) on, depths [begin,
// end). Passed beside the product, since copies of fresh structs stall on store forwarding.
struct Part {
  std::int64_t row, column, begin, end, groups;
};

// `groups` times kRows rows by kVectors registers.
template <class Step, int kRows, int kVectors>
[[gnu::noinline]] static void product_tile(const Product& p, const Part& part) {
  const std::int64_t a_row = p.a_row, a_depth = p.a_depth, b_stride = p.b_stride;
  const std::int64_t c_stride = p.c_stride, depth = part.end - part.begin;
  const float* first = p.a + part.row * a_row + part.begin * a_depth;
  const float* right_first = p.b + part.begin * b_stride + part.column;
  const float* pre = p.pre ? p.pre + part.row : nullptr;
  const float* post = p.post ? p.post + part.row : nullptr;
  float* to = p.c + part.row * c_stride + part.column;
  std::int64_t groups = part.groups;
  for (; groups > 0; --groups, first += kRows * a_row, to += kRows * c_stride) {
    F32 c[kRows][kVectors];
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 4
      for (int n = 0; n < kVectors; ++n) c[m][n] = zero();
    if (p.add) {
#pragma GCC unroll 8
      for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 4
        for (int n = 0; n < kVectors; ++n) c[m][n] = load(to + m * c_stride + n * kLanes);
      if (pre) {
#pragma GCC unroll 8
        for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 4
          for (int n = 0; n < kVectors; ++n) c[m][n] = c[m][n] * set(pre[m]);
        pre += kRows;
      }
      if (p.pre_columns) {
        const float* factors = p.pre_columns + part.column;
#pragma GCC unroll 4
        for (int n = 0; n < kVectors; ++n) {
          const F32 factor = load(factors + n * kLanes);
#pragma GCC unroll 8
          for (int m = 0; m < kRows; ++m) c[m][n] = c[m][n] * factor;
        }
      }
    }
    const float* a = first;
    const float* b = right_first;
    for (std::int64_t k = 0; k < depth; ++k, a += a_depth, b += b_stride) {
      F32 right[kVectors];
#pragma GCC unroll 4
      for (int n = 0; n < kVectors; ++n) right[n] = load(b + n * kLanes);
#pragma GCC unroll 8
      for (int m = 0; m < kRows; ++m) {
        const F32 left = set(a[m * a_row]);
#pragma GCC unroll 4
        for (int n = 0; n < kVectors; ++n) c[m][n] = Step::add(left, right[n], c[m][n]);
      }
    }
    if (post) {
#pragma GCC unroll 8
      for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 4
        for (int n = 0; n < kVectors; ++n) c[m][n] = c[m][n] * set(post[m]);
      post += kRows;
    }
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 4
      for (int n = 0; n < kVectors; ++n) store(to + m * c_stride + n * kLanes, c[m][n]);
  }
}

template <class Step, int kVectors, int kRows = rows_for(kVectors)>
QKV_INLINE void product_rows(const Product& p, std::int64_t rows, const Part& part) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return product_rows<Step, kVectors, kRows - 1>(p, rows, part);
  }
  product_tile<Step, kRows, kVectors>(p, part);
}

// part.groups * rows rows by `vectors` registers, rows <= rows_for(vectors).
template <class Step = FloatStep>
QKV_INLINE void product_groups(const Product& p, std::int64_t rows, std::int64_t vectors,
                               const Part& part) {
  switch (vectors) {
    case 1:
      return product_rows<Step, 1>(p, rows, part);
    case 2:
      return product_rows<Step, 2>(p, rows, part);
#if defined(QKV_ISA_avx512)
    case 3:
      return product_rows<Step, 3>(p, rows, part);
    case 4:
      return product_rows<Step, 4>(p, rows, part);
#endif
    default:
      return;
  }
}

// Even shares of at most `most`: 13 rows by at most 8 are 7 + 6.
QKV_INLINE std::int64_t even_share(std::int64_t n, std::int64_t most) {
  if (n <= most) return n;
  const auto count = static_cast<std::uint32_t>(n), limit = static_cast<std::uint32_t>(most);
  const std::uint32_t parts = (count + limit - 1) / limit;
  return (count + parts - 1) / parts;
}

// `rows` rows by `vectors` registers from part.row and part.column on, over its depths.
template <class Step = FloatStep>
QKV_INLINE void product_part(const Product& p, std::int64_t rows, std::int64_t vectors,
                             const Part& part) {
  const std::int64_t group = even_share(vectors, kMaxVectors);
  const std::int64_t step = even_share(rows, rows_for(static_cast<int>(group)));
  if (step == 0) return;
  const std::int64_t full =
      step == rows ? 1 : static_cast<std::uint32_t>(rows) / static_cast<std::uint32_t>(step);
  const std::int64_t rest = rows - full * step;
  for (std::int64_t n = 0; n < vectors; n += group) {
    const std::int64_t width = smaller(group, vectors - n), column = part.column + n * kLanes;
    product_groups<Step>(p, step, width, {part.row, column, part.begin, part.end, full});
    if (rest > 0)
      product_groups<Step>(p, rest, width,
                           {part.row + full * step, column, part.begin, part.end, 1});
  }
}

// Rows by `vectors` registers, all of it.
[[maybe_unused, gnu::noinline]] static void product_all(const Product& p, std::int64_t rows,
                                                        std::int64_t vectors) {
  product_part(p, rows, vectors, {0, 0, 0, p.depth, 0});
}

QKV_INLINE bool is_everything(Band band) { return band.low == -kFar && band.high == kFar; }

// Rows by `vectors` registers; row m needs depths [m + low, m + high] only.
[[maybe_unused, gnu::noinline]] static void product_by_depth(const Product& p, std::int64_t rows,
                                                             std::int64_t vectors, Band band) {
  if (is_everything(band)) return product_all(p, rows, vectors);
  const std::int64_t group = even_share(vectors, kMaxVectors);
  const std::int64_t step = even_share(rows, rows_for(static_cast<int>(group)));
  for (std::int64_t n = 0; n < vectors; n += group)
    for (std::int64_t m = 0; m < rows; m += step) {
      const std::int64_t height = smaller(step, rows - m);
      const std::int64_t begin = clamp_to(m + band.low, 0, p.depth);
      const std::int64_t end = clamp_to(m + height + band.high, begin, p.depth);
      product_groups(p, height, smaller(group, vectors - n), {m, n * kLanes, begin, end, 1});
    }
}

// Rows by `vectors` registers; of row m only the registers that meet columns [m + low, m + high]
// are computed, the others are left alone.
[[maybe_unused, gnu::noinline]] static void product_by_columns(const Product& p, std::int64_t rows,
                                                               std::int64_t vectors, Band band) {
  if (is_everything(band)) return product_all(p, rows, vectors);
  const std::int64_t most = smaller(vectors, kMaxVectors);
  const std::int64_t step = even_share(rows, rows_for(static_cast<int>(most)));
  for (std::int64_t m = 0; m < rows; m += step) {
    const std::int64_t height = smaller(step, rows - m);
    const std::int64_t begin = clamp_to(m + band.low, 0, vectors * kLanes) / kLanes;
    const std::int64_t end =
        round_up(clamp_to(m + height + band.high, 0, vectors * kLanes), kLanes) / kLanes;
    if (begin >= end) continue;
    const std::int64_t group = even_share(end - begin, kMaxVectors);
    for (std::int64_t n = begin; n < end; n += group)
      product_groups(p, height, smaller(group, end - n), {m, n * kLanes, 0, p.depth, 1});
  }
}

// As product_by_depth, but a coefficient that is exactly zero adds nothing, whatever b holds: for
// tiles where something hidden is not finite.
[[maybe_unused, gnu::noinline]] static void product_selected(const Product& p, std::int64_t rows,
                                                             std::int64_t vectors, Band band) {
  for (std::int64_t m = 0; m < rows; ++m) {
    const std::int64_t begin = clamp_to(m + band.low, 0, p.depth);
    const std::int64_t end = clamp_to(m + 1 + band.high, begin, p.depth);
    for (std::int64_t n = 0; n < vectors; ++n) {
      float* at = p.c + m * p.c_stride + n * kLanes;
      F32 c = p.add ? load(at) : zero();
      if (p.add && p.pre) c = c * set(p.pre[m]);
      for (std::int64_t k = begin; k < end; ++k) {
        const float a = p.a[m * p.a_row + k * p.a_depth];
        if (a != 0) c = fma(set(a), load(p.b + k * p.b_stride + n * kLanes), c);
      }
      store(at, p.post ? c * set(p.post[m]) : c);
    }
  }
}

QKV_INLINE void product_masked(const Product& p, std::int64_t rows, std::int64_t vectors, Band band,
                               bool finite) {
  if (finite)
    product_by_depth(p, rows, vectors, band);
  else
    product_selected(p, rows, vectors, band);
}

}  // namespace qkv::inline v0::kernels::QKV_ISA
