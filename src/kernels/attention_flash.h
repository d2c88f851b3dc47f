// What the flash kernels of an instruction set are given: one (sequence, query head), plain data.
//
// The ISA files see nothing but this header and vec.h: no member functions, no standard templates.
// Planning (which heads, which tiles, in what order, scratch memory) is in attention_flash.cc.
#pragma once

#include <cstddef>
#include <cstdint>

namespace qkv::inline v0::kernels {

// Widest query tile, and keys per block forward and backward: the scores of a block (64 x 128, and
// two of 64 x 64) stay in a first-level cache of 32 KiB or more with the rows they meet.
inline constexpr std::int64_t kFlashQueries = 64;
inline constexpr std::int64_t kForwardKeys = 128;
inline constexpr std::int64_t kBackwardKeys = 64;
// Query tiles that go through the keys together: a block of keys is fetched once for all of them.
inline constexpr std::int64_t kForwardTiles = 8;
// Queries that backward keeps transposed, with their dq: scratch memory does not grow beyond them.
inline constexpr std::int64_t kBackwardQueries = 1024;
inline constexpr std::int64_t kDecodeKeys = 64;  // likewise of decode, with keys and values

// Rows of one operand: row t at data + t * stride, channels contiguous.
struct FlashRows {
  const float* data;
  std::int64_t stride;
};
struct FlashOutput {
  float* data;
  std::int64_t stride;
};

// Rows of 16-bit elements.
enum class NarrowType : std::uint8_t { kBFloat16, kFloat16 };
struct NarrowRows {
  NarrowType type;
  const std::uint16_t* data;
  std::int64_t stride;
};
struct NarrowOutput {
  NarrowType type;
  std::uint16_t* data;
  std::int64_t stride;
};

// What mask arrays and windows do to one tile: nothing, add without hiding, hide some of it, hide
// all.
enum class FlashBias : std::uint8_t { kOpen, kAdded, kPartial, kBlocked };

struct FlashHead {
  FlashRows q, k, v, dout;
  FlashOutput out, dq, dk, dv;
  // Of kernels that take products of bf16: their operands as they are stored.
  NarrowRows narrow_q, narrow_k, narrow_v, narrow_o, narrow_dout;
  NarrowOutput narrow_out;
  float* lse;
  const float* dlse;           // backward; null: none
  std::int64_t queries, keys;  // N, and the keys that lengths leave of S
  std::int64_t offset;         // S - N
  std::int64_t left, right;    // window around i + offset; -1: unlimited
  std::int64_t head_size, value_size;
  std::int64_t tile;  // queries per tile: kernels take it from flash_tile_width
  float scale;
  float query_scale;  // of the packed queries: scale log2(e), or scale / cap
  float softcap;      // cap log2(e); 0: none
  float slope;        // ALiBi, times log2(e); 0: none
  // Backward: dq is of the first query of the run.
  bool add_to_kv;     // add to dk, dv instead of overwriting
  std::int64_t part;  // keys whose share of dq is summed apart

  // Mask arrays and windows; null: none. Fills bias[r * stride + lane] for keys first_key + r and
  // queries first_query + lane with what is added to log2-domain scores, -inf where blocked. Only
  // when the result is kAdded or kPartial.
  FlashBias (*fill_bias)(const void* context, const struct FlashTile& tile, float* bias);
  // Backward; null: not wanted. Takes the gradients of a tile's scores, laid out like the bias.
  void (*add_bias_gradient)(const void* context, const struct FlashTile& tile,
                            const float* gradients);
  const void* bias_context;

  // Dropout; see AttentionDropout. Numbers below the threshold drop.
  bool dropout;
  std::uint32_t threshold, sample, step, head;
  float keep_scale;
  std::uint64_t key;

  float* scratch;  // flash_*_scratch floats, aligned to 64 bytes
};

// Queries or keys [begin, end).
struct FlashRange {
  std::int64_t begin, end;
};

// A rectangle of the score matrix.
struct FlashTile {
  std::int64_t first_query, queries, first_key, keys;
  std::int64_t stride;  // of the rows (keys) of a tile buffer, in floats
};

// Rows of fp32 or bf16; the stride in elements.
struct DecodeRows {
  const void* data;
  std::int64_t stride;
};

// Few queries of the heads that share a key/value head: the rows of one tile. Either `transposed`:
// q is [D][tile] with a tile of whole registers, or up to eight rows: q is [tile][q_stride], zeros
// behind rows and D, with a tile of four or eight.
struct FlashDecode {
  FlashHead head;  // sizes, softcap, bias, tile; scratch: behind q
  std::int64_t rows;
  bool transposed;
  // k and v are bf16, D and Dv whole pairs of registers; not transposed. In every two
  // registers of q and out the even channels then stand before the odd ones.
  bool brain;
  std::int64_t q_stride;  // D in whole registers
  const float* q;         // times query_scale
  DecodeRows k, v;
  std::int64_t first_key;  // of the first row of k and v
  // Bytes from k and v to the rows that are read after these, to be fetched meanwhile; 0: none.
  std::int64_t ahead_k, ahead_v;
  float *maximum, *sum;  // results: of every row (log2 domain)
  float* out;            // [rows in whole fours][Dv in whole registers], times sum
};

// What an instruction set provides.
struct FlashTable {
  // Queries [begin, end) of a head; begin is a multiple of the tile.
  void (*forward)(const FlashHead& head, std::int64_t begin, std::int64_t end);
  // Queries of a head, from a multiple of the tile on and at most backward_queries of them, against
  // keys from a multiple of kBackwardKeys on: their share of dk and dv, and of dq, all of which is
  // the sum of the shares of parts in order.
  void (*backward)(const FlashHead& head, FlashRange queries, FlashRange keys);
  // Keys [begin, end) against all rows.
  void (*decode)(const FlashDecode& decode, std::int64_t begin, std::int64_t end);
  // `count` rows of `depth` elements to fp32 rows that follow each other without gaps, exactly; and
  // back, rounded to nearest even, NaN kept.
  void (*widen)(NarrowRows from, std::int64_t count, std::int64_t depth, float* to);
  void (*narrow)(const float* from, std::int64_t count, std::int64_t depth, NarrowOutput to);
  std::int64_t lanes;
  // Floats of scratch memory where they are not those of fp32 operands.
  std::int64_t (*forward_scratch)(const FlashHead& head);
  std::int64_t (*backward_scratch)(const FlashHead& head);
};

template <class T>
struct AttentionProblem;

// Whole tiles of kBackwardQueries, at least one.
inline std::int64_t backward_queries(std::int64_t tile) {
  return kBackwardQueries < tile ? tile : kBackwardQueries / tile * tile;
}

// scale, query_scale, softcap and slope of a head.
void set_scales(FlashHead& head, double scale, double softcap, double slope);

// Plan and run a whole problem on the pool. dk and dv of keys that lengths hides are zeroed. T:
// float, BFloat16 or Float16.
template <class T>
void flash_forward(const FlashTable& table, const AttentionProblem<T>& problem);
template <class T>
void flash_backward(const FlashTable& table, const AttentionProblem<T>& problem);
// Of a problem with one sequence and key/value head; adds to dbias instead of overwriting it.
void flash_add_backward(const FlashTable& table, const AttentionProblem<float>& problem);

}  // namespace qkv::inline v0::kernels
