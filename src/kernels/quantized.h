// Products with a matrix that stays in its stored type: blocks, bf16, fp16 or fp32. Its elements
// are widened in registers, so that memory is read once in the small type.
#pragma once

#include <cstdint>

#include "base/block_type.h"

namespace qkv::inline v0::kernels {

// The block types in their order, then the plain ones.
enum class RowType : std::uint8_t {
  kQ40,
  kQ41,
  kQ50,
  kQ51,
  kQ80,
  kQ4K,
  kQ5K,
  kQ6K,
  kFloat32,
  kBFloat16,
  kFloat16
};
constexpr RowType row_type(BlockType type) { return static_cast<RowType>(type); }
constexpr bool is_block_type(RowType type) { return type < RowType::kFloat32; }

// W [n, k]; k is a multiple of a block's elements.
struct StoredRows {
  RowType type = RowType::kFloat32;
  const std::uint8_t* data = nullptr;
  std::int64_t stride = 0;  // bytes from row to row
  std::int64_t n = 0, k = 0;
};

// y [m, n] = x [m, k] W^T + bias for 1 to kFewRows rows, by the calling thread. An element's bits
// depend on its rows of x and W and on the bias alone. Accuracy: k 2^-24 sum |x||w|.
inline constexpr std::int64_t kFewRows = 8;
struct FewRowsProduct {
  StoredRows w;
  std::int64_t m;
  const float* x;
  std::int64_t ldx;
  const float* bias;  // [n]; null: none
  float* y;
  std::int64_t ldy;
  const float* halves;  // half_table()
};

struct QuantizedKernels {
  void (*multiply)(const FewRowsProduct&);
  // y [n, k] = W, within one rounding of its definition.
  void (*unpack)(const StoredRows& w, const float* halves, float* y);
};
const QuantizedKernels& quantized_kernels();

// The fp32 values of all 65536 fp16 numbers. Thread-safe; made at the first call.
const float* half_table();

namespace reference {
extern const QuantizedKernels kQuantized;
}

}  // namespace qkv::inline v0::kernels
