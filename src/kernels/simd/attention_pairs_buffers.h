// Flash attention on bf16 products, forward: what a head keeps in scratch memory, and how keys and
// values get there.
#pragma once

#include "kernels/simd/attention_engine.h"

namespace qkv::inline v0::kernels::QKV_ISA {

// Rows of keys and values in whole registers of any engine.
constexpr std::int64_t kPairLanes = 16;
// Keys that are packed at a time, a multiple of kForwardKeys: they stay in a second-level cache.
// Where there are more, so many query tiles go through them together.
constexpr std::int64_t kPackedKeys = 4096;
constexpr std::int64_t kPairTiles = 16;

// Hands out a head's scratch memory in whole lines; without memory, counts it.
struct ScratchCutter {
  float* base;
  std::int64_t used = 0;

  QKV_INLINE float* operator()(std::int64_t floats) {
    float* at = base ? base + used : nullptr;
    used += round_up(floats, kPairLanes);
    return at;
  }
};

// Scratch memory of a head. Values are packed by blocks of kForwardKeys keys, [Dv][keys / 2] each.
struct PairForwardBuffers {
  float* q;                   // of each tile that goes along: [D / 2][tile]
  float* scores;              // [kForwardKeys][tile]
  float* bias;                // likewise
  float* weights;             // [kForwardKeys / 2][tile]
  float* out;                 // likewise [Dv][tile]
  float* rows;                // [tile][Dv], or rows on their way
  float* k;                   // [packed keys][D / 2]
  float* v;                   // blocks
  float* finite;              // of each block of values: 1 or 0
  float* specials;            // a block
  std::int64_t floats;        // in all
  std::int64_t words;         // of a row of q and k
  std::int64_t packed_words;  // likewise, as they are packed
  std::int64_t values;        // Dv in whole registers
};
template <class Engine>
QKV_INLINE PairForwardBuffers pair_forward_buffers(const FlashHead& h) {
  PairForwardBuffers b;
  b.words = engine_words<Engine>(h.head_size);
  b.packed_words = round_up(b.words, kPairLanes);
  b.values = round_up(h.value_size, kPairLanes);
  const std::int64_t keys = smaller(h.keys, kPackedKeys);
  const std::int64_t blocks = (keys + kForwardKeys - 1) / kForwardKeys;
  const std::int64_t tiles = h.keys > kPackedKeys ? kPairTiles : 1;
  ScratchCutter take = {h.scratch};
  b.q = take(tiles * b.packed_words * h.tile);
  b.scores = take(kForwardKeys * h.tile);
  b.bias = take(kForwardKeys * h.tile);
  b.weights = take(kForwardKeys / 2 * h.tile);
  b.out = take(tiles * b.values * h.tile);
  b.rows = take(larger(h.tile * larger(b.values, b.packed_words), kForwardKeys / 2 * b.values));
  b.k = take(round_up(keys, kPairBlock) * b.packed_words);
  b.v = take(blocks * kForwardKeys / 2 * b.values);
  b.finite = take(blocks);
  b.specials = take(kForwardKeys / 2 * b.values);
  b.floats = take.used;
  return b;
}
template <class Engine>
static std::int64_t pair_forward_scratch(const FlashHead& head) {
  FlashHead at_zero = head;
  at_zero.scratch = nullptr;
  return pair_forward_buffers<Engine>(at_zero).floats;
}

// Values of keys [first, first + count) as a block; `specials` and nothing else, or all but them:
// whether there were none.
QKV_INLINE bool pack_values(const FlashHead& h, const PairForwardBuffers& b, RowRange keys,
                            float* block, bool specials) {
  const std::int64_t count = keys.end - keys.begin, padded = round_up(count, kPairBlock);
  pack_row_pairs(rows_from(h.narrow_v, keys.begin), {count, h.value_size, padded}, b.rows,
                 b.values);
  bool none = false;
  if (specials)
    leave_specials(b.rows, padded / 2 * b.values);
  else
    none = take_specials_out(b.rows, padded / 2 * b.values);
  transpose_words({b.rows, b.values, padded / 2, b.values}, block, kForwardKeys / 2);
  return none;
}

// Keys and their values, begin a multiple of kForwardKeys; rows are numbered from it.
[[gnu::noinline]] static void pack_keys(const FlashHead& h, const PairForwardBuffers& b,
                                        RowRange keys) {
  const std::int64_t count = keys.end - keys.begin;
  pack_rows(rows_from(h.narrow_k, keys.begin), {count, h.head_size, round_up(count, kPairBlock)},
            b.k, b.packed_words);
  for (std::int64_t at = 0; at < count; at += kForwardKeys) {
    const std::int64_t first = keys.begin + at;
    const RowRange block = {first, smaller(first + kForwardKeys, keys.end)};
    b.finite[at / kForwardKeys] = pack_values(h, b, block, b.v + at / 2 * b.values, false) ? 1 : 0;
  }
}

}  // namespace qkv::inline v0::kernels::QKV_ISA
