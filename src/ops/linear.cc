#include "ops/linear.h"

#include <optional>
#include <type_traits>

#include "base/function_ref.h"
#include "kernels/packed_matrix.h"
#include "ops/common.h"

namespace qkv::inline v0::ops {
namespace {

// A matrix whose rows are contiguous; the rows may lie apart.
void check_rows(const Tensor& x, const char* where, const char* name) {
  require<ShapeError>(x.defined() && x.rank() == 2, where,
                      "expected {} to be a matrix, got shape {}", name,
                      x.defined() ? x.shape().str() : "none");
  require<ShapeError>(x.dim(1) <= 1 || x.stride(1) == 1, where,
                      "expected the rows of {} to be contiguous, got a stride of {}", name,
                      x.stride(1));
}

void check_linear(const Tensor& x, const Tensor& w, const char* where) {
  check_rows(x, where, "x");
  check_matrix(w, where, "w");
  require<ShapeError>(w.numel() > 0, where, "expected a weight that is not empty, got {}",
                      w.shape().str());
  require<ShapeError>(w.dim(1) == x.dim(1) && w.dtype() == x.dtype(), where,
                      "expected x [T, K] and w [N, K] of one dtype, got {} {} and {} {}",
                      dtype_name(x.dtype()), x.shape().str(), dtype_name(w.dtype()),
                      w.shape().str());
}

// Rows of one work item, and of one chunk of the bias gradient: few where there are few, so that
// threads have work. Cut by shape alone.
std::int64_t block_rows(std::int64_t rows) { return rows >= 512 ? 128 : rows >= 256 ? 64 : 32; }

// From so many rows on it pays to pack the weight as a whole first.
constexpr std::int64_t kManyRows = 512;
// A packed weight is cut by rows from so many on: each row is turned once, not once per cut of the
// columns.
constexpr std::int64_t kManyRowsPacked = 128;

// Rows begin .. end of y = activation(product), of `pre` if it is kept, else of `product`, which
// may be y.
template <class T>
void apply_activation(const LinearResult& result, Activation activation, const T* product,
                      std::int64_t begin, std::int64_t end) {
  if (activation == Activation::kNone) return;
  const std::int64_t out = result.y.dim(1);
  kernels::activation_kernels<T>().forward({.kind = activation,
                                            .rows = end - begin,
                                            .width = out,
                                            .in = product,
                                            .in_stride = is_gated(activation) ? 2 * out : out,
                                            .y = result.y.data<T>() + begin * out,
                                            .y_stride = out});
}

// The product of a block of rows with the bias, then the activation while the block is in cache.
template <class T>
void forward(const Tensor& x, const kernels::PackedMatrix<T>& w, const Tensor& bias,
             Activation activation, const LinearResult& result) {
  const std::int64_t width = w.n(), out = result.y.dim(1);
  parallel_chunks(x.dim(0), block_rows(x.dim(0)), [&](std::int64_t begin, std::int64_t end) {
    T* product =
        result.pre.defined() ? result.pre.data<T>() + begin * width
        : is_gated(activation)
            ? thread_scratch_of<T>(static_cast<std::size_t>((end - begin) * width), kScratchSlot)
            : result.y.data<T>() + begin * out;
    w.multiply(end - begin, x.data<T>() + begin * x.stride(0), x.stride(0), data_or_null<T>(bias),
               product);
    apply_activation(result, activation, product, begin, end);
  });
}

// For few rows: the activation is a pass of its own. `multiply` writes the product.
void forward_few(std::int64_t width, Activation activation, const LinearResult& result,
                 FunctionRef<void(float*)> multiply) {
  const std::int64_t rows = result.y.dim(0);
  const Tensor product = result.pre.defined()   ? result.pre
                         : is_gated(activation) ? Tensor::empty({rows, width})
                                                : result.y;
  multiply(product.data<float>());
  if (activation == Activation::kNone) return;
  parallel_chunks(rows, block_rows(rows), [&](std::int64_t begin, std::int64_t end) {
    apply_activation(result, activation, product.data<float>() + begin * width, begin, end);
  });
}

// The gradient before the activation (in place of pre) and, per chunk of rows, the bias' sums; then
// dx while the rows are in cache.
template <class T>
void backward_rows(const Tensor& dy, const Tensor& w, Activation activation, const Tensor& pre,
                   const Tensor& dx, const Tensor& dbias, Into into) {
  const std::int64_t rows = dy.dim(0), width = w.dim(0), depth = w.dim(1);
  const std::int64_t chunk = block_rows(rows);
  const auto& activations = kernels::activation_kernels<T>();
  const Partials<T> sums(chunk_count(rows, chunk), width, dbias.defined());
  const bool has_pre = activation != Activation::kNone;
  const MemoryScope scope(MemoryKind::kWorkspace);
  const bool is_few = std::is_same_v<T, float> && rows < kManyRows;
  std::optional<kernels::PackedMatrix<T>> packed;
  if (dx.defined() && rows > 0 && !is_few) packed.emplace(w.data<T>(), depth, false, width, depth);
  parallel_chunks(rows, chunk, [&](std::int64_t begin, std::int64_t end) {
    const T* dpre = has_pre ? pre.data<T>() + begin * width : dy.data<T>() + begin * dy.stride(0);
    const std::int64_t stride = has_pre ? width : dy.stride(0);
    if (has_pre || dbias.defined()) {
      activations.backward({.kind = activation,
                            .rows = end - begin,
                            .width = dy.dim(1),
                            .dy = dy.data<T>() + begin * dy.stride(0),
                            .dy_stride = dy.stride(0),
                            .pre = has_pre ? dpre : nullptr,
                            .pre_stride = width,
                            .dpre = has_pre ? pre.data<T>() + begin * width : nullptr,
                            .dbias = sums.of(begin / chunk)});
    }
    if (packed) packed->multiply(end - begin, dpre, stride, nullptr, dx.data<T>() + begin * depth);
  });
  if constexpr (std::is_same_v<T, float>) {
    if (dx.defined() && rows > 0 && is_few) {
      const Tensor& dpre = has_pre ? pre : dy;
      kernels::multiply({.m = rows,
                         .n = depth,
                         .k = width,
                         .a = dpre.data<float>(),
                         .lda = dpre.stride(0),
                         .b = w.data<float>(),
                         .ldb = depth,
                         .transpose = false,
                         .bias = nullptr,
                         .c = dx.data<float>()});
    }
  }
  if (dbias.defined()) sums.add_to(dbias.data<T>(), into == Into::kAdd);
}

// Checks, and the tensors for the result.
LinearResult allocate_result(const Tensor& x, const Tensor& w, const Tensor& bias,
                             Activation activation, bool keep_pre) {
  check_linear(x, w, "linear");
  const std::int64_t width = w.dim(0);
  if (bias.defined()) check_like(bias, {width}, x.dtype(), "linear", "bias");
  const bool gated = is_gated(activation);
  require<ShapeError>(!gated || width % 2 == 0, "linear",
                      "expected an even number of outputs for {}, got {}",
                      activation_name(activation), width);
  LinearResult result;
  result.y = Tensor::empty({x.dim(0), gated ? width / 2 : width}, x.dtype());
  if (keep_pre && activation != Activation::kNone)
    result.pre = Tensor::empty({x.dim(0), width}, x.dtype());
  return result;
}

template <class T>
void backward_weight(const Tensor& dpre, const Tensor& x, const Tensor& dw, Into into) {
  kernels::weight_gradient(kernels::WeightGradient<T>{.t = x.dim(0),
                                                      .n = dw.dim(0),
                                                      .k = dw.dim(1),
                                                      .dy = dpre.data<T>(),
                                                      .ldy = dpre.stride(0),
                                                      .x = x.data<T>(),
                                                      .ldx = x.stride(0),
                                                      .dw = dw.data<T>(),
                                                      .accumulate = into == Into::kAdd});
}

}  // namespace

LinearResult linear(const Tensor& x, const Tensor& w, const Tensor& bias, Activation activation,
                    bool keep_pre) {
  LinearResult result = allocate_result(x, w, bias, activation, keep_pre);
  const std::int64_t rows = x.dim(0), width = w.dim(0), depth = w.dim(1);
  if (rows == 0) return result;
  if (x.dtype() == DType::kFloat32 && rows < kManyRows) {
    forward_few(width, activation, result, [&](float* product) {
      kernels::multiply({.m = rows,
                         .n = width,
                         .k = depth,
                         .a = x.data<float>(),
                         .lda = x.stride(0),
                         .b = w.data<float>(),
                         .ldb = depth,
                         .transpose = true,
                         .bias = data_or_null<float>(bias),
                         .c = product});
    });
    return result;
  }
  dispatch_floating(x.dtype(), "linear", [&]<class T>(T) {
    const MemoryScope scope(MemoryKind::kWorkspace);
    const kernels::PackedMatrix<T> matrix(w.data<T>(), depth, true, depth, width);
    forward<T>(x, matrix, bias, activation, result);
  });
  return result;
}

namespace {

const Tensor& check_packable(const Tensor& w) {
  check_matrix(w, "PackedWeight", "w");
  require<ShapeError>(w.dtype() == DType::kFloat32 && w.numel() > 0, "PackedWeight",
                      "expected a float32 matrix that is not empty, got {} {}",
                      dtype_name(w.dtype()), w.shape().str());
  return w;
}

kernels::PackedMatrix<float> pack(const Tensor& w) {
  const MemoryScope scope(MemoryKind::kWeights);
  return {w.data<float>(), w.dim(1), true, w.dim(1), w.dim(0)};
}

}  // namespace

PackedWeight::PackedWeight(const Tensor& w) : w_(check_packable(w)), matrix_(pack(w)) {}

LinearResult linear(const Tensor& x, const PackedWeight& w, const Tensor& bias,
                    Activation activation) {
  LinearResult result = allocate_result(x, w.w_, bias, activation, false);
  if (x.dim(0) == 0) return result;
  if (x.dim(0) >= kManyRowsPacked) {
    forward<float>(x, w.matrix_, bias, activation, result);
  } else {
    forward_few(w.matrix_.n(), activation, result, [&](float* product) {
      w.matrix_.multiply_parallel(x.dim(0), x.data<float>(), x.stride(0), data_or_null<float>(bias),
                                  product);
    });
  }
  return result;
}

LinearGradients linear_backward(const Tensor& dy, const Tensor& x, const Tensor& w,
                                Activation activation, const Tensor& pre, bool need_dx,
                                const LinearSlots& slots) {
  const Tensor &dw = slots.dw, &dbias = slots.dbias;
  const Into into = slots.into;
  const char* where = "linear_backward";
  check_linear(x, w, where);
  check_rows(dy, where, "dy");
  const std::int64_t width = w.dim(0), out = is_gated(activation) ? width / 2 : width;
  require<ShapeError>(dy.dim(0) == x.dim(0) && dy.dim(1) == out && dy.dtype() == x.dtype(), where,
                      "expected dy {} [{}, {}], got {} {}", dtype_name(x.dtype()), x.dim(0), out,
                      dtype_name(dy.dtype()), dy.shape().str());
  if (activation != Activation::kNone)
    check_like(pre, {x.dim(0), width}, x.dtype(), where, "pre (call linear with keep_pre)");
  if (dw.defined()) check_like(dw, w.shape(), x.dtype(), where, "dw");
  if (dbias.defined()) check_like(dbias, {width}, x.dtype(), where, "dbias");
  LinearGradients result;
  if (need_dx) result.dx = Tensor::empty(x.shape(), x.dtype());
  dispatch_floating(x.dtype(), where, [&]<class T>(T) {
    backward_rows<T>(dy, w, activation, pre, result.dx, dbias, into);
    if (dw.defined()) backward_weight<T>(activation == Activation::kNone ? dy : pre, x, dw, into);
  });
  return result;
}

}  // namespace qkv::inline v0::ops
