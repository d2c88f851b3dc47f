#include "ops/attention_merge.h"

#include "base/check.h"
#include "kernels/attention_merge.h"

namespace qkv::inline v0::ops {

namespace {

constexpr const char* kWhere = "merge_attention";

DType lse_type(DType dtype) { return dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32; }

void check_tensor(const Tensor& tensor, const Shape& shape, DType dtype, const char* name) {
  require<ShapeError>(tensor.defined() && tensor.shape() == shape && tensor.dtype() == dtype,
                      kWhere, "expected {} {} of shape {}, got {} {}", name, dtype_name(dtype),
                      shape.str(), dtype_name(tensor.dtype()), tensor.shape().str());
}

// Shape of lse that belongs to `out`.
Shape lse_shape(const Tensor& out, bool heads_first) {
  if (out.rank() == 3) return {out.dim(1), out.dim(0)};
  return heads_first ? Shape{out.dim(0), out.dim(1), out.dim(2)}
                     : Shape{out.dim(0), out.dim(2), out.dim(1)};
}

// Contiguous operands, kept alive beside the problem that points to them.
template <class T>
struct Prepared {
  kernels::MergeProblem<T> problem;
  Tensor a, b, a_lse, b_lse;
};

template <class T>
Prepared<T> prepare(const AttentionResult& a, const AttentionResult& b, bool heads_first) {
  using Statistic = typename kernels::MergeProblem<T>::Statistic;
  Prepared<T> prepared;
  prepared.a = a.out.contiguous();
  prepared.b = b.out.contiguous();
  prepared.a_lse = a.lse.contiguous();
  prepared.b_lse = b.lse.contiguous();
  kernels::MergeProblem<T>& p = prepared.problem;
  const Tensor& out = prepared.a;
  const bool ragged = out.rank() == 3;
  p.heads_first = heads_first && !ragged;
  p.outer = ragged ? 1 : out.dim(0);
  p.tokens = ragged ? out.dim(0) : out.dim(p.heads_first ? 2 : 1);
  p.heads = ragged ? out.dim(1) : out.dim(p.heads_first ? 1 : 2);
  p.depth = out.dim(-1);
  p.a = prepared.a.template data<T>();
  p.b = prepared.b.template data<T>();
  p.a_lse = prepared.a_lse.template data<Statistic>();
  p.b_lse = prepared.b_lse.template data<Statistic>();
  return prepared;
}

void check_sides(const AttentionResult& a, const AttentionResult& b, bool heads_first) {
  require<ShapeError>(a.out.defined() && (a.out.rank() == 3 || a.out.rank() == 4), kWhere,
                      "expected values [T, H, Dv] or of rank 4, got {}", a.out.shape().str());
  const DType dtype = a.out.dtype();
  require<ShapeError>(is_floating(dtype), kWhere,
                      "expected float32, float64, bfloat16 or float16, got {}", dtype_name(dtype));
  check_tensor(b.out, a.out.shape(), dtype, "the second values");
  check_tensor(a.lse, lse_shape(a.out, heads_first), lse_type(dtype), "the first lse");
  check_tensor(b.lse, lse_shape(a.out, heads_first), lse_type(dtype), "the second lse");
}

template <class T>
AttentionResult merge(const AttentionResult& a, const AttentionResult& b, bool heads_first) {
  using Statistic = typename kernels::MergeProblem<T>::Statistic;
  Prepared<T> prepared = prepare<T>(a, b, heads_first);
  AttentionResult result;
  result.out = Tensor::empty(a.out.shape(), a.out.dtype());
  result.lse = Tensor::empty(a.lse.shape(), a.lse.dtype());
  prepared.problem.out = result.out.template data<T>();
  prepared.problem.lse = result.lse.template data<Statistic>();
  kernels::merge_attention(prepared.problem);
  return result;
}

template <class T>
MergeGradients merge_backward(const Tensor& dout, const Tensor& dlse, const AttentionResult& a,
                              const AttentionResult& b, const Tensor& merged, bool heads_first) {
  using Statistic = typename kernels::MergeProblem<T>::Statistic;
  Prepared<T> prepared = prepare<T>(a, b, heads_first);
  const Tensor values = merged.contiguous(), g = dout.contiguous();
  const Tensor g_lse = dlse.defined() ? dlse.contiguous() : Tensor();
  MergeGradients made{
      Tensor::empty(a.out.shape(), a.out.dtype()), Tensor::empty(a.lse.shape(), a.lse.dtype()),
      Tensor::empty(a.out.shape(), a.out.dtype()), Tensor::empty(a.lse.shape(), a.lse.dtype())};
  kernels::MergeProblem<T>& p = prepared.problem;
  p.merged = values.data<T>();
  p.dout = g.data<T>();
  p.dlse = g_lse.defined() ? g_lse.data<Statistic>() : nullptr;
  p.da = made.a_out.template data<T>();
  p.db = made.b_out.template data<T>();
  p.da_lse = made.a_lse.template data<Statistic>();
  p.db_lse = made.b_lse.template data<Statistic>();
  kernels::merge_attention_backward(p);
  return made;
}

}  // namespace

AttentionResult merge_attention(const AttentionResult& a, const AttentionResult& b,
                                bool heads_first) {
  check_sides(a, b, heads_first);
  switch (a.out.dtype()) {
    case DType::kFloat64:
      return merge<double>(a, b, heads_first);
    case DType::kBFloat16:
      return merge<BFloat16>(a, b, heads_first);
    case DType::kFloat16:
      return merge<Float16>(a, b, heads_first);
    default:
      return merge<float>(a, b, heads_first);
  }
}

MergeGradients merge_attention_backward(const Tensor& dout, const Tensor& dlse,
                                        const AttentionResult& a, const AttentionResult& b,
                                        const AttentionResult& merged, bool heads_first) {
  check_sides(a, b, heads_first);
  check_tensor(merged.out, a.out.shape(), a.out.dtype(), "the merged values");
  check_tensor(dout, a.out.shape(), a.out.dtype(), "dout");
  if (dlse.defined()) check_tensor(dlse, a.lse.shape(), a.lse.dtype(), "dlse");
  switch (a.out.dtype()) {
    case DType::kFloat64:
      return merge_backward<double>(dout, dlse, a, b, merged.out, heads_first);
    case DType::kBFloat16:
      return merge_backward<BFloat16>(dout, dlse, a, b, merged.out, heads_first);
    case DType::kFloat16:
      return merge_backward<Float16>(dout, dlse, a, b, merged.out, heads_first);
    default:
      return merge_backward<float>(dout, dlse, a, b, merged.out, heads_first);
  }
}

}  // namespace qkv::inline v0::ops
