// fp32 matrix products with a packed right-hand side: what each instruction set implements, for the
// calling thread. PackedMatrix and weight_gradient (packed_matrix.h) are the way to use them.
#pragma once

#include <cstdint>

namespace qkv::inline v0::kernels {

// B [k, n] with row stride ldb, or [n, k] if transpose, into panels of ProductKernels::panel
// columns: [panels][k][panel]; what the missing columns of the last one hold is no matter. `packed`
// is aligned to 64 bytes. A range of columns that starts with a panel can be packed apart from the
// others.
struct PanelPacking {
  const float* b;
  std::int64_t ldb;
  bool transpose;
  std::int64_t k, n;
  float* packed;
};

// C = A B + bias. B is packed; or it lies as in PanelPacking, and each panel is packed when its
// turn comes, once per 256 rows of A. A row's bits depend on that row, B and the bias alone.
struct PackedProduct {
  std::int64_t m, n, k;
  const float* a;
  std::int64_t lda;
  const float* packed;  // null: b
  const float* b;
  std::int64_t ldb;
  bool transpose;
  const float* bias;  // [n]; null: none
  float* c;
  std::int64_t ldc;
  float* scratch;  // multiply_scratch floats
};

// dw [n, k] = dy^T x, or += if accumulate, for dy [t, n] and x [t, k], as sums over steps of tokens
// added in order: an element's bits do not depend on the block it is in. n is at most
// kGradientRows.
struct GradientBlock {
  std::int64_t t, n, k;
  const float* dy;
  std::int64_t ldy;
  const float* x;
  std::int64_t ldx;
  float* dw;
  std::int64_t ldw;
  bool accumulate;
  float* scratch;  // gradient_scratch floats
};
inline constexpr std::int64_t kGradientRows = 512;

struct ProductKernels {
  std::int64_t panel;
  std::int64_t multiply_scratch, gradient_scratch;
  void (*pack)(const PanelPacking&);
  void (*multiply)(const PackedProduct&);
  void (*gradient)(const GradientBlock&);
};

// The implementation in use; null: the reference is asked for, which packs nothing.
const ProductKernels* product_kernels();

}  // namespace qkv::inline v0::kernels
