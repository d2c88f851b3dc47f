#include "ops/linear.h"

#include "kernels/gemm.h"
#include "ops/common.h"

namespace qkv::inline v0::ops {
namespace {

// Rows of the weight's gradient that one work item computes.
constexpr std::int64_t kWeightRows = 128;

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
  require<ShapeError>(w.dim(1) == x.dim(1) && w.dtype() == x.dtype(), where,
                      "expected x [T, K] and w [N, K] of one dtype, got {} {} and {} {}",
                      dtype_name(x.dtype()), x.shape().str(), dtype_name(w.dtype()),
                      w.shape().str());
}

template <class T>
void forward(const Tensor& x, const Tensor& w, const Tensor& bias, Activation activation,
             const LinearResult& result) {
  const std::int64_t width = w.dim(0), depth = w.dim(1);
  const bool gated = is_gated(activation), raw = activation == Activation::kNone && !bias.defined();
  const auto& activations = kernels::activation_kernels<T>();
  parallel_chunks(x.dim(0), kChunkRows, [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t rows = end - begin;
    T* y = result.y.data<T>() + begin * result.y.dim(1);
    T* product = result.pre.defined() ? result.pre.data<T>() + begin * width
                 : gated              ? thread_scratch_of<T>(rows * width, kScratchSlot)
                                      : y;
    kernels::gemm(kernels::Gemm<T>{.transpose_b = true,
                                   .m = rows,
                                   .n = width,
                                   .k = depth,
                                   .a = x.data<T>() + begin * x.stride(0),
                                   .lda = x.stride(0),
                                   .b = w.data<T>(),
                                   .ldb = depth,
                                   .c = product,
                                   .ldc = width});
    if (raw) return;
    activations.forward({.kind = activation,
                         .rows = rows,
                         .width = result.y.dim(1),
                         .in = product,
                         .in_stride = width,
                         .bias = data_or_null<T>(bias),
                         .pre = result.pre.defined() ? product : nullptr,
                         .y = y,
                         .y_stride = result.y.dim(1)});
  });
}

// The gradient before the activation (in place of pre) and, per chunk of rows, the bias' sums; then
// dx while the rows are in cache.
template <class T>
void backward_rows(const Tensor& dy, const Tensor& w, Activation activation, const Tensor& pre,
                   const Tensor& dx, const Tensor& dbias, Into into) {
  const std::int64_t rows = dy.dim(0), width = w.dim(0), depth = w.dim(1);
  const auto& activations = kernels::activation_kernels<T>();
  const Partials<T> sums(chunk_count(rows, kChunkRows), width, dbias.defined());
  const bool has_pre = activation != Activation::kNone;
  parallel_chunks(rows, kChunkRows, [&](std::int64_t begin, std::int64_t end) {
    const T* dpre = has_pre ? pre.data<T>() + begin * width : dy.data<T>() + begin * dy.stride(0);
    if (has_pre || dbias.defined()) {
      activations.backward({.kind = activation,
                            .rows = end - begin,
                            .width = dy.dim(1),
                            .dy = dy.data<T>() + begin * dy.stride(0),
                            .dy_stride = dy.stride(0),
                            .pre = has_pre ? dpre : nullptr,
                            .pre_stride = width,
                            .dpre = has_pre ? pre.data<T>() + begin * width : nullptr,
                            .dbias = sums.of(begin / kChunkRows)});
    }
    if (!dx.defined()) return;
    kernels::gemm(kernels::Gemm<T>{.m = end - begin,
                                   .n = depth,
                                   .k = width,
                                   .a = dpre,
                                   .lda = has_pre ? width : dy.stride(0),
                                   .b = w.data<T>(),
                                   .ldb = depth,
                                   .c = dx.data<T>() + begin * depth,
                                   .ldc = depth});
  });
  if (dbias.defined()) sums.add_to(dbias.data<T>(), into == Into::kAdd);
}

template <class T>
void backward_weight(const Tensor& dpre, const Tensor& x, const Tensor& dw, Into into) {
  parallel_chunks(dw.dim(0), kWeightRows, [&](std::int64_t begin, std::int64_t end) {
    kernels::gemm(kernels::Gemm<T>{.transpose_a = true,
                                   .m = end - begin,
                                   .n = dw.dim(1),
                                   .k = x.dim(0),
                                   .a = dpre.data<T>() + begin,
                                   .lda = dpre.stride(0),
                                   .b = x.data<T>(),
                                   .ldb = x.stride(0),
                                   .c = dw.data<T>() + begin * dw.dim(1),
                                   .ldc = dw.dim(1),
                                   .accumulate = into == Into::kAdd});
  });
}

}  // namespace

LinearResult linear(const Tensor& x, const Tensor& w, const Tensor& bias, Activation activation,
                    bool keep_pre) {
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
  dispatch_floating(x.dtype(), "linear",
                    [&]<class T>(T) { forward<T>(x, w, bias, activation, result); });
  return result;
}

LinearGradients linear_backward(const Tensor& dy, const Tensor& x, const Tensor& w,
                                Activation activation, const Tensor& pre, bool need_dx,
                                const Tensor& dw, const Tensor& dbias, Into into) {
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
