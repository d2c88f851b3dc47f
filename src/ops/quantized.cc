#include "ops/quantized.h"

#include <algorithm>

#include "kernels/activation.h"
#include "kernels/product.h"
#include "kernels/quantized.h"
#include "kernels/reference/gemm.h"
#include "ops/common.h"

namespace qkv::inline v0::ops {
namespace {

using kernels::kFewRows;
using kernels::StoredRows;

constexpr const char* kWhere = "quantized_linear";
// Columns that are widened and packed at a time: whole panels of every instruction set.
constexpr std::int64_t kPanelColumns = 64;
// Floats of the widened piece of a weight, unless one panel is larger.
constexpr std::int64_t kPieceFloats = std::int64_t{1} << 20;
// Bytes of the weight that one work item reads for few rows.
constexpr std::int64_t kItemBytes = 32768;
// thread_scratch slots of this file; 0 and 1 belong to the products, 2 to the ops.
constexpr int kWidenSlot = 3, kProductSlot = 1;

kernels::RowType type_of(const QuantizedWeight::Part& part) {
  if (!part.dense.defined()) return kernels::row_type(part.blocks.type);
  switch (part.dense.dtype()) {
    case DType::kBFloat16:
      return kernels::RowType::kBFloat16;
    case DType::kFloat16:
      return kernels::RowType::kFloat16;
    default:
      return kernels::RowType::kFloat32;
  }
}

// Rows begin .. begin + count of the part itself.
StoredRows rows_of(const QuantizedWeight::Part& part, std::int64_t begin, std::int64_t count) {
  const Tensor& bytes = part.dense.defined() ? part.dense : part.blocks.bytes;
  const std::int64_t stride =
      bytes.stride(0) * static_cast<std::int64_t>(dtype_size(bytes.dtype()));
  const std::int64_t k =
      part.dense.defined() ? part.dense.dim(1) : part.blocks.shape[part.blocks.shape.rank() - 1];
  return {type_of(part), static_cast<const std::uint8_t*>(bytes.raw()) + begin * stride, stride,
          count, k};
}

struct Problem {
  const Tensor& x;
  const QuantizedWeight& w;
  const float* bias;
  float* y;  // [T, N]
};

// At most kFewRows rows: W is read once, in items of about kItemBytes.
void multiply_few(const Problem& p) {
  struct Item {
    const QuantizedWeight::Part* part;
    std::int64_t begin, count;
  };
  std::vector<Item> items;
  for (const QuantizedWeight::Part& part : p.w.parts()) {
    const std::int64_t bytes = std::max<std::int64_t>(rows_of(part, 0, 1).stride, 1);
    const std::int64_t step = std::max<std::int64_t>(kItemBytes / bytes / 2 * 2, 2);
    for (std::int64_t i = 0; i < part.count; i += step)
      items.push_back({&part, i, std::min(step, part.count - i)});
  }
  const kernels::QuantizedKernels& kernel = kernels::quantized_kernels();
  const float* halves = kernels::half_table();
  parallel_for(static_cast<std::int64_t>(items.size()), [&](std::int64_t i) {
    const Item& item = items[static_cast<std::size_t>(i)];
    const std::int64_t first = item.part->first + item.begin;
    kernel.multiply({.w = rows_of(*item.part, item.begin, item.count),
                     .m = p.x.dim(0),
                     .x = p.x.data<float>(),
                     .ldx = p.x.stride(0),
                     .bias = p.bias == nullptr ? nullptr : p.bias + first,
                     .y = p.y + first,
                     .ldy = p.w.rows(),
                     .halves = halves});
  });
}

// Rows begin .. end of the whole weight as fp32 [end - begin, K].
void widen(const QuantizedWeight& w, std::int64_t begin, std::int64_t end, float* to) {
  const kernels::QuantizedKernels& kernel = kernels::quantized_kernels();
  for (const QuantizedWeight::Part& part : w.parts()) {
    const std::int64_t from = std::max(begin, part.first),
                       stop = std::min(end, part.first + part.count);
    if (from >= stop) continue;
    kernel.unpack(rows_of(part, from - part.first, stop - from), kernels::half_table(),
                  to + (from - begin) * w.columns());
  }
}

float* widen_here(const QuantizedWeight& w, std::int64_t begin, std::int64_t end) {
  auto* scratch =
      thread_scratch_of<float>(static_cast<std::size_t>((end - begin) * w.columns()), kWidenSlot);
  widen(w, begin, end, scratch);
  return scratch;
}

// The reference: a panel at a time, by definition.
void multiply_by_definition(const Problem& p) {
  const std::int64_t rows = p.x.dim(0), n = p.w.rows(), k = p.w.columns();
  parallel_chunks(n, kPanelColumns, [&](std::int64_t begin, std::int64_t end) {
    kernels::reference::gemm(kernels::Gemm<float>{.transpose_b = true,
                                                  .m = rows,
                                                  .n = end - begin,
                                                  .k = k,
                                                  .a = p.x.data<float>(),
                                                  .lda = p.x.stride(0),
                                                  .b = widen_here(p.w, begin, end),
                                                  .ldb = k,
                                                  .c = p.y + begin,
                                                  .ldc = n});
    for (std::int64_t t = 0; p.bias != nullptr && t < rows; ++t)
      for (std::int64_t i = begin; i < end; ++i) p.y[t * n + i] += p.bias[i];
  });
}

// Rows and columns of one work item of the product with a piece.
struct Cut {
  std::int64_t rows, columns;
};
Cut cut_of(std::int64_t rows, std::int64_t columns) {
  constexpr std::int64_t kManyRows = 128;  // each row is then turned once
  if (rows >= kManyRows) return {rows >= 512 ? 128 : 64, columns};
  const std::int64_t quarter = (columns / 4 + kPanelColumns - 1) / kPanelColumns * kPanelColumns;
  return {rows, std::clamp<std::int64_t>(quarter, 128, 384)};
}

// Piece by piece: widened and packed in parallel, then multiplied in parallel.
void multiply_many(const Problem& p, const kernels::ProductKernels& kernel) {
  const std::int64_t rows = p.x.dim(0), n = p.w.rows(), k = p.w.columns();
  const std::int64_t piece =
      std::max<std::int64_t>(kPieceFloats / k / kPanelColumns * kPanelColumns, kPanelColumns);
  const MemoryScope scope(MemoryKind::kWorkspace);
  const std::int64_t widest =
      std::min(piece, (n + kPanelColumns - 1) / kPanelColumns * kPanelColumns);
  const Tensor packed = Tensor::empty({widest, k});
  auto* panels = packed.data<float>();
  for (std::int64_t first = 0; first < n; first += piece) {
    const std::int64_t columns = std::min(piece, n - first);
    parallel_chunks(columns, kPanelColumns, [&](std::int64_t begin, std::int64_t end) {
      kernel.pack({.b = widen_here(p.w, first + begin, first + end),
                   .ldb = k,
                   .transpose = true,
                   .k = k,
                   .n = end - begin,
                   .packed = panels + begin * k});
    });
    const Cut cut = cut_of(rows, columns);
    const std::int64_t across = chunk_count(columns, cut.columns);
    parallel_for(chunk_count(rows, cut.rows) * across, [&](std::int64_t i) {
      const std::int64_t row = i / across * cut.rows, column = i % across * cut.columns;
      kernel.multiply({.m = std::min(cut.rows, rows - row),
                       .n = std::min(cut.columns, columns - column),
                       .k = k,
                       .a = p.x.data<float>() + row * p.x.stride(0),
                       .lda = p.x.stride(0),
                       .packed = panels + column * k,
                       .bias = p.bias == nullptr ? nullptr : p.bias + first + column,
                       .c = p.y + row * n + first + column,
                       .ldc = n,
                       .scratch = thread_scratch_of<float>(
                           static_cast<std::size_t>(kernel.multiply_scratch), kProductSlot)});
    });
  }
}

void check_stored(bool good, const Shape& shape) {
  require<ShapeError>(good && shape.numel() > 0, "quantized_weight",
                      "expected a matrix [N, K] that is not empty, with contiguous rows, got {}",
                      shape.str());
}

Tensor activated(const Tensor& product, Activation activation) {
  if (activation == Activation::kNone || product.dim(0) == 0)
    return is_gated(activation) ? Tensor::empty({0, product.dim(1) / 2}) : product;
  const std::int64_t width = product.dim(1);
  const bool gated = is_gated(activation);
  Tensor y = gated ? Tensor::empty({product.dim(0), width / 2}) : product;
  const std::int64_t out = y.dim(1);
  constexpr std::int64_t kRows = 16;
  parallel_chunks(product.dim(0), kRows, [&](std::int64_t begin, std::int64_t end) {
    kernels::activation_kernels<float>().forward({.kind = activation,
                                                  .rows = end - begin,
                                                  .width = out,
                                                  .in = product.data<float>() + begin * width,
                                                  .in_stride = width,
                                                  .y = y.data<float>() + begin * out,
                                                  .y_stride = out});
  });
  return y;
}

}  // namespace

QuantizedWeight::QuantizedWeight(const BlockTensor& w) {
  const BlockLayout layout = block_layout(w.type);
  check_stored(
      w.shape.rank() == 2 && w.bytes.defined() && w.bytes.dtype() == DType::kUInt8 &&
          w.shape[1] % layout.elements == 0 &&
          w.bytes.shape() == Shape{w.shape[0], w.shape[1] / layout.elements * layout.bytes} &&
          w.bytes.is_contiguous(),
      w.shape);
  rows_ = w.shape[0];
  columns_ = w.shape[1];
  parts_.push_back({w, Tensor(), 0, rows_});
}

QuantizedWeight::QuantizedWeight(const Tensor& w) {
  require<ShapeError>(w.defined(), "quantized_weight", "expected a matrix [N, K], got none");
  check_stored(w.rank() == 2 && w.stride(1) == 1, w.shape());
  require<ShapeError>(
      w.dtype() == DType::kFloat32 || w.dtype() == DType::kBFloat16 || w.dtype() == DType::kFloat16,
      "quantized_weight", "expected float32, bfloat16 or float16, got {}", dtype_name(w.dtype()));
  rows_ = w.dim(0);
  columns_ = w.dim(1);
  parts_.push_back({BlockTensor(), w, 0, rows_});
}

QuantizedWeight QuantizedWeight::stack(std::span<const QuantizedWeight> parts) {
  QuantizedWeight whole;
  for (const QuantizedWeight& weight : parts) {
    require<ShapeError>(whole.rows_ == 0 || weight.columns_ == whole.columns_, "quantized_weight",
                        "expected matrices of {} columns, got {}", whole.columns_, weight.columns_);
    whole.columns_ = weight.columns_;
    for (Part part : weight.parts_) {
      part.first = whole.rows_;
      whole.rows_ += part.count;
      whole.parts_.push_back(std::move(part));
    }
  }
  return whole;
}

std::size_t QuantizedWeight::nbytes() const {
  std::size_t bytes = 0;
  for (const Part& part : parts_)
    bytes += part.dense.defined() ? part.dense.nbytes() : part.blocks.bytes.nbytes();
  return bytes;
}

Tensor quantized_linear(const Tensor& x, const QuantizedWeight& w, const Tensor& bias,
                        Activation activation) {
  require<ShapeError>(w.rows() > 0, kWhere, "expected a weight, got none");
  require<ShapeError>(x.defined() && x.rank() == 2 && x.dtype() == DType::kFloat32 &&
                          x.dim(1) == w.columns() && (x.dim(1) == 1 || x.stride(1) == 1),
                      kWhere, "expected x [T, {}] of float32 with contiguous rows, got {} {}",
                      w.columns(), x.defined() ? dtype_name(x.dtype()) : "",
                      x.defined() ? x.shape().str() : "none");
  if (bias.defined()) check_like(bias, {w.rows()}, DType::kFloat32, kWhere, "bias");
  require<ShapeError>(!is_gated(activation) || w.rows() % 2 == 0, kWhere,
                      "expected an even number of outputs for {}, got {}",
                      activation_name(activation), w.rows());
  const Tensor product = Tensor::empty({x.dim(0), w.rows()});
  const Problem problem{x, w, data_or_null<float>(bias), product.data<float>()};
  if (x.dim(0) > 0) {
    if (x.dim(0) <= kFewRows) {
      multiply_few(problem);
    } else if (const kernels::ProductKernels* kernel = kernels::product_kernels()) {
      multiply_many(problem, *kernel);
    } else {
      multiply_by_definition(problem);
    }
  }
  return activated(product, activation);
}

Tensor quantized_embedding(const QuantizedWeight& table, std::span<const std::int32_t> ids) {
  require<ShapeError>(table.rows() > 0, "quantized_embedding", "expected a table, got none");
  Tensor y = Tensor::empty({static_cast<std::int64_t>(ids.size()), table.columns()});
  for (const std::int32_t id : ids)
    require<ArgumentError>(id >= 0 && id < table.rows(), "quantized_embedding",
                           "expected ids from 0 to {}, got {}", table.rows() - 1, id);
  parallel_chunks(static_cast<std::int64_t>(ids.size()), 16,
                  [&](std::int64_t begin, std::int64_t end) {
                    for (std::int64_t t = begin; t < end; ++t) {
                      const std::int64_t id = ids[static_cast<std::size_t>(t)];
                      widen(table, id, id + 1, y.data<float>() + t * table.columns());
                    }
                  });
  return y;
}

Tensor dequantize(const BlockTensor& w) {
  const Shape flat{w.bytes.dim(0), w.shape[w.shape.rank() - 1]};
  const QuantizedWeight weight(BlockTensor{w.type, flat, w.bytes});
  Tensor y = Tensor::empty(w.shape);
  parallel_chunks(weight.rows(), kPanelColumns, [&](std::int64_t begin, std::int64_t end) {
    widen(weight, begin, end, y.data<float>() + begin * weight.columns());
  });
  return y;
}

}  // namespace qkv::inline v0::ops
