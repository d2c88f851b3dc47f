// The parts that flash attention is made of: transposed packing, one product kernel, tile masks.
//
// Score tiles are stored by key: row r is key first_key + r, its lanes are queries. So the softmax
// needs no horizontal operation, and keys and values are read in place.
#pragma once

#include "kernels/attention_flash.h"
#include "kernels/simd/vec.h"

namespace qkv::inline v0::kernels::QKV_ISA {

constexpr float kLog2E = 1.44269504088896340736f;
constexpr float kLn2 = 0.69314718055994530942f;

QKV_INLINE std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
QKV_INLINE std::int64_t larger(std::int64_t a, std::int64_t b) { return a > b ? a : b; }
QKV_INLINE std::int64_t clamp_to(std::int64_t x, std::int64_t low, std::int64_t high) {
  return x < low ? low : x > high ? high : x;
}
QKV_INLINE std::int64_t round_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }
QKV_INLINE F32 minus_infinity() { return set(-__builtin_inff()); }

// ---- Transposing ----------------------------------------------------------------------------

#if defined(QKV_ISA_avx512)
QKV_INLINE F32 load_quads(const float* const* rows, std::int64_t at) {
  __m512 z = _mm512_castps128_ps512(_mm_loadu_ps(rows[0] + at));
  z = _mm512_insertf32x4(z, _mm_loadu_ps(rows[4] + at), 1);
  z = _mm512_insertf32x4(z, _mm_loadu_ps(rows[8] + at), 2);
  return {_mm512_insertf32x4(z, _mm_loadu_ps(rows[12] + at), 3)};
}
QKV_INLINE void transpose_quads(F32 (&r)[4]) {
  const __m512 a = _mm512_unpacklo_ps(r[0].v, r[1].v), b = _mm512_unpackhi_ps(r[0].v, r[1].v);
  const __m512 c = _mm512_unpacklo_ps(r[2].v, r[3].v), d = _mm512_unpackhi_ps(r[2].v, r[3].v);
  r[0].v = _mm512_shuffle_ps(a, c, 0x44);
  r[1].v = _mm512_shuffle_ps(a, c, 0xEE);
  r[2].v = _mm512_shuffle_ps(b, d, 0x44);
  r[3].v = _mm512_shuffle_ps(b, d, 0xEE);
}
#elif defined(QKV_ISA_avx2)
QKV_INLINE F32 load_quads(const float* const* rows, std::int64_t at) {
  const __m256 z = _mm256_castps128_ps256(_mm_loadu_ps(rows[0] + at));
  return {_mm256_insertf128_ps(z, _mm_loadu_ps(rows[4] + at), 1)};
}
QKV_INLINE void transpose_quads(F32 (&r)[4]) {
  const __m256 a = _mm256_unpacklo_ps(r[0].v, r[1].v), b = _mm256_unpackhi_ps(r[0].v, r[1].v);
  const __m256 c = _mm256_unpacklo_ps(r[2].v, r[3].v), d = _mm256_unpackhi_ps(r[2].v, r[3].v);
  r[0].v = _mm256_shuffle_ps(a, c, 0x44);
  r[1].v = _mm256_shuffle_ps(a, c, 0xEE);
  r[2].v = _mm256_shuffle_ps(b, d, 0x44);
  r[3].v = _mm256_shuffle_ps(b, d, 0xEE);
}
#else
QKV_INLINE F32 load_quads(const float* const* rows, std::int64_t at) { return load(rows[0] + at); }
QKV_INLINE void transpose_quads(F32 (&r)[4]) {
  const NativeI32 low = {0, 4, 1, 5}, high = {2, 6, 3, 7}, first = {0, 1, 4, 5},
                  second = {2, 3, 6, 7};
  const NativeF32 a = __builtin_shuffle(r[0].v, r[1].v, low);
  const NativeF32 b = __builtin_shuffle(r[0].v, r[1].v, high);
  const NativeF32 c = __builtin_shuffle(r[2].v, r[3].v, low);
  const NativeF32 d = __builtin_shuffle(r[2].v, r[3].v, high);
  r[0].v = __builtin_shuffle(a, c, first);
  r[1].v = __builtin_shuffle(a, c, second);
  r[2].v = __builtin_shuffle(b, d, first);
  r[3].v = __builtin_shuffle(b, d, second);
}
#endif

// to[d * width + r] = scale * from[r][d] for r < rows. Lanes from `rows` to `width` (a multiple of
// kLanes) repeat the last row: they are never used, but must not be read from past the end.
[[gnu::noinline]] static void pack_transposed(FlashRows from, std::int64_t rows, std::int64_t depth,
                                              float scale, float* to, std::int64_t width) {
  const F32 factor = set(scale);
  for (std::int64_t first = 0; first < width; first += kLanes) {
    const float* row[kLanes];
    for (int i = 0; i < kLanes; ++i)
      row[i] = from.data + smaller(first + i, rows - 1) * from.stride;
    std::int64_t d = 0;
    for (; d + 4 <= depth; d += 4) {
      F32 r[4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) r[i] = load_quads(row + i, d);
      transpose_quads(r);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) store(to + (d + i) * width + first, r[i] * factor);
    }
    for (; d < depth; ++d)
      for (int i = 0; i < kLanes; ++i) to[d * width + first + i] = row[i][d] * scale;
  }
}

// Copies rows into whole registers, zeros behind them.
QKV_INLINE FlashRows copy_rows(FlashRows from, std::int64_t rows, std::int64_t depth, float* to) {
  const std::int64_t width = round_up(depth, kLanes);
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t d = 0; d < width; d += kLanes)
      store(to + r * width + d, load(from.data + r * from.stride + d, first_lanes(depth - d)));
  return {to, width};
}

QKV_INLINE FlashRows rows_from(FlashRows rows, std::int64_t first) {
  return {rows.data + first * rows.stride, rows.stride};
}

// x 2^n where `lanes`, else 0. Hidden lanes must not underflow: a denormal result costs a hundred
// cycles.
#if defined(QKV_ISA_avx512)
QKV_INLINE F32 scale2_where(Mask lanes, F32 x, F32 n) {
  return {_mm512_maskz_scalef_ps(lanes.v, x.v, n.v)};
}
#else
QKV_INLINE F32 scale2_where(Mask lanes, F32 x, F32 n) {
  return keep(lanes, scale2(x, max(set(-126.0f), n)));
}
#endif

// 2^x for x <= 0 or a little above; 0 from -126 down, for -inf too; NaN for NaN. Accuracy: 4 ULP.
QKV_INLINE F32 exp2_weight(F32 x) {
  const Mask alive = ~(x <= set(-126.0f));
  const F32 n = round(x), r = x - n;
  F32 p = set(0.00133813025373f);
  p = fma(p, r, set(0.00966636851539f));
  p = fma(p, r, set(0.055503810138f));
  p = fma(p, r, set(0.24022349038f));
  p = fma(p, r, set(0.69314718056f));
  return scale2_where(alive, fma(p, r, set(1.0f)), n);
}

QKV_INLINE bool all_finite(FlashRows rows, std::int64_t count, std::int64_t depth) {
  F32 sum[2] = {zero(), zero()};  // 0 x is NaN where x is not finite
  for (std::int64_t d = 0; d < depth; d += kLanes) {
    const Mask lanes = first_lanes(depth - d);
    const float* at = rows.data + d;
    std::int64_t r = 0;
    for (; r + 2 <= count; r += 2, at += 2 * rows.stride) {
      sum[0] = fma(load(at, lanes), zero(), sum[0]);
      sum[1] = fma(load(at + rows.stride, lanes), zero(), sum[1]);
    }
    if (r < count) sum[0] = fma(load(at, lanes), zero(), sum[0]);
  }
  return !any(sum[0] + sum[1] != zero());
}

// ---- Products -------------------------------------------------------------------------------

// c[m][n] = post[m] * (c[m][n] * pre[m] + sum_k a(m, k) b[k][n]), n in registers.
struct Product {
  const float* a;
  std::int64_t a_row, a_depth;  // a(m, k) = a[m * a_row + k * a_depth]
  const float* b;
  std::int64_t b_stride;
  float* c;
  std::int64_t c_stride;
  std::int64_t depth;
  const float* pre;   // null: 1; only with `add`
  const float* post;  // null: 1
  bool add;           // false: c is overwritten
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

// `groups` times kRows rows.
template <int kRows, int kVectors>
[[gnu::noinline]] static void product_tile(const Product& p, std::int64_t groups) {
  const float* first = p.a;
  const float* pre = p.pre;
  const float* post = p.post;
  float* to = p.c;
  const std::int64_t a_row = p.a_row, a_depth = p.a_depth, b_stride = p.b_stride;
  const std::int64_t c_stride = p.c_stride, depth = p.depth;
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
    }
    const float* a = first;
    const float* b = p.b;
    for (std::int64_t k = 0; k < depth; ++k, a += a_depth, b += b_stride) {
      F32 right[kVectors];
#pragma GCC unroll 4
      for (int n = 0; n < kVectors; ++n) right[n] = load(b + n * kLanes);
#pragma GCC unroll 8
      for (int m = 0; m < kRows; ++m) {
        const F32 left = set(a[m * a_row]);
#pragma GCC unroll 4
        for (int n = 0; n < kVectors; ++n) c[m][n] = fma(left, right[n], c[m][n]);
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

template <int kVectors, int kRows = rows_for(kVectors)>
QKV_INLINE void product_rows(const Product& p, std::int64_t rows, std::int64_t groups) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return product_rows<kVectors, kRows - 1>(p, rows, groups);
  }
  product_tile<kRows, kVectors>(p, groups);
}

// groups * rows rows by `vectors` registers, rows <= rows_for(vectors).
QKV_INLINE void product_groups(const Product& p, std::int64_t rows, std::int64_t groups,
                               std::int64_t vectors) {
  switch (vectors) {
    case 1:
      return product_rows<1>(p, rows, groups);
    case 2:
      return product_rows<2>(p, rows, groups);
#if defined(QKV_ISA_avx512)
    case 3:
      return product_rows<3>(p, rows, groups);
    case 4:
      return product_rows<4>(p, rows, groups);
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

QKV_INLINE Product moved(Product p, std::int64_t row, std::int64_t column) {
  p.a += row * p.a_row;
  p.b += column;
  p.c += row * p.c_stride + column;
  if (p.pre) p.pre += row;
  if (p.post) p.post += row;
  return p;
}

// Rows by `vectors` registers, all of it.
[[gnu::noinline]] static void product_all(const Product& whole, std::int64_t rows,
                                          std::int64_t vectors) {
  const std::int64_t group = even_share(vectors, kMaxVectors);
  const std::int64_t step = even_share(rows, rows_for(static_cast<int>(group)));
  if (step == 0) return;
  const std::int64_t full =
      step == rows ? 1 : static_cast<std::uint32_t>(rows) / static_cast<std::uint32_t>(step);
  const std::int64_t rest = rows - full * step;
  for (std::int64_t n = 0; n < vectors; n += group) {
    const Product p = moved(whole, 0, n * kLanes);
    const std::int64_t width = smaller(group, vectors - n);
    product_groups(p, step, full, width);
    if (rest > 0) product_groups(moved(p, full * step, 0), rest, 1, width);
  }
}

QKV_INLINE bool is_everything(Band band) { return band.low == -kFar && band.high == kFar; }

// Rows by `vectors` registers; row m needs depths [m + low, m + high] only.
[[gnu::noinline]] static void product_by_depth(const Product& whole, std::int64_t rows,
                                               std::int64_t vectors, Band band) {
  if (is_everything(band)) return product_all(whole, rows, vectors);
  const std::int64_t group = even_share(vectors, kMaxVectors);
  for (std::int64_t n = 0; n < vectors; n += group) {
    const std::int64_t width = smaller(group, vectors - n);
    const std::int64_t step = even_share(rows, rows_for(static_cast<int>(group)));
    for (std::int64_t m = 0; m < rows; m += step) {
      const std::int64_t height = smaller(step, rows - m);
      Product p = moved(whole, m, n * kLanes);
      const std::int64_t begin = clamp_to(m + band.low, 0, whole.depth);
      const std::int64_t end = clamp_to(m + height + band.high, begin, whole.depth);
      p.a += begin * p.a_depth;
      p.b += begin * p.b_stride;
      p.depth = end - begin;
      product_groups(p, height, 1, width);
    }
  }
}

// Rows by `vectors` registers; of row m only the registers that meet columns [m + low, m + high]
// are computed, the others are left alone.
[[gnu::noinline]] static void product_by_columns(const Product& whole, std::int64_t rows,
                                                 std::int64_t vectors, Band band) {
  if (is_everything(band)) return product_all(whole, rows, vectors);
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
      product_groups(moved(whole, m, n * kLanes), height, 1, smaller(group, end - n));
  }
}

// As product_by_depth, but a coefficient that is exactly zero adds nothing, whatever b holds: for
// tiles where something hidden is not finite.
[[gnu::noinline]] static void product_selected(const Product& p, std::int64_t rows,
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

// ---- Masks ----------------------------------------------------------------------------------

// How much of a tile is visible. Rows (keys) and lanes (queries) in tile coordinates.
struct TileMask {
  bool partial;
  Band of_key;        // lanes that key row r sees: r + low .. r + high
  Band of_query;      // rows that lane q sees
  const float* bias;  // rows of the tile's stride; null: none
};

QKV_INLINE TileMask tile_mask(const FlashHead& h, const FlashTile& t, float* bias, bool* skip) {
  TileMask mask = {false, kEverything, kEverything, nullptr};
  const std::int64_t shift = t.first_query + h.offset - t.first_key;  // key of lane 0, as a row
  if (h.left >= 0) {
    mask.of_query.low = shift - h.left;
    mask.of_key.high = h.left - shift;
    mask.partial = t.queries - 1 + mask.of_query.low > 0;
  }
  if (h.right >= 0) {
    mask.of_query.high = shift + h.right;
    mask.of_key.low = -h.right - shift;
    mask.partial = mask.partial || mask.of_query.high < t.keys - 1;
  }
  *skip = t.queries - 1 + mask.of_query.high < 0 || mask.of_query.low > t.keys - 1;
  if (h.fill_bias && !*skip) {
    const FlashBias kind = h.fill_bias(h.bias_context, t, bias);
    if (kind == FlashBias::kBlocked) *skip = true;
    if (kind == FlashBias::kPartial) {
      mask.partial = true;
      mask.bias = bias;
    }
  }
  return mask;
}

// Rows that any lane of the register at `lane` sees: [begin, end).
struct RowRange {
  std::int64_t begin, end;
};
QKV_INLINE RowRange rows_of_register(const TileMask& mask, std::int64_t lane, std::int64_t rows) {
  const std::int64_t begin = clamp_to(lane + mask.of_query.low, 0, rows);
  return {begin, clamp_to(lane + kLanes + mask.of_query.high, begin, rows)};
}

// Row groups of a product reach up to 7 rows over the range of a register: zeroes 8 rows beside it.
QKV_INLINE void zero_beside(float* weights, std::int64_t stride, std::int64_t lane, RowRange range,
                            std::int64_t rows) {
  for (std::int64_t r = larger(range.begin - 8, 0); r < range.begin; ++r)
    store(weights + r * stride + lane, zero());
  for (std::int64_t r = range.end; r < smaller(range.end + 8, rows); ++r)
    store(weights + r * stride + lane, zero());
}

// Writes `hidden_value` where a lane does not see a key by window and causal.
QKV_INLINE void mask_rows(const TileMask& mask, float* scores, std::int64_t stride,
                          std::int64_t lane, RowRange range, F32 hidden_value) {
  const U32 one = set(1u), index = lane_index();
  U32 low = set(static_cast<std::uint32_t>(
      clamp_to(range.begin + mask.of_key.low - lane, -kFlashFar, kFlashFar)));
  U32 high = set(static_cast<std::uint32_t>(
      clamp_to(range.begin + mask.of_key.high - lane, -kFlashFar, kFlashFar)));
  for (std::int64_t r = range.begin; r < range.end; ++r, low = low + one, high = high + one) {
    float* at = scores + r * stride + lane;
    const Mask hidden = less_signed(index, low) | less_signed(high, index);
    store(at, select(hidden, hidden_value, load(at)));
  }
}

// Adds the bias, and writes -inf where a lane does not see a key.
QKV_INLINE void mask_scores(const TileMask& mask, float* scores, std::int64_t stride,
                            std::int64_t lane, RowRange range) {
  if (mask.bias) {
    for (std::int64_t r = range.begin; r < range.end; ++r) {
      float* at = scores + r * stride + lane;
      const F32 bias = load(mask.bias + r * stride + lane);
      store(at, select(bias == minus_infinity(), bias, load(at) + bias));
    }
  }
  // Rows that every lane sees need nothing: under causal all but one square on the diagonal.
  const std::int64_t begin = clamp_to(lane + kLanes - 1 - mask.of_key.high, range.begin, range.end);
  const std::int64_t end = clamp_to(lane - mask.of_key.low + 1, begin, range.end);
  mask_rows(mask, scores, stride, lane, {range.begin, begin}, minus_infinity());
  mask_rows(mask, scores, stride, lane, {end, range.end}, minus_infinity());
}

// The numbers of dropout for 4 keys (a multiple of 4 first) and the queries of a register.
QKV_INLINE PhiloxVectors dropout_numbers(const FlashHead& h, std::int64_t query, std::int64_t key) {
  const std::uint64_t mixed =
      h.key + static_cast<std::uint64_t>(query >> 16) * std::uint64_t{0x9E3779B97F4A7C15u};
  const U32 token = set(h.head << 16 | static_cast<std::uint32_t>(query & 0xFFFF)) + lane_index();
  return philox(mixed,
                {{set(static_cast<std::uint32_t>(key / 4)), token, set(h.sample), set(h.step)}});
}

}  // namespace qkv::inline v0::kernels::QKV_ISA
