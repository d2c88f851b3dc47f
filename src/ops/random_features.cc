#include "ops/random_features.h"

#include <cmath>

#include "kernels/attention.h"
#include "kernels/attention_linear.h"
#include "kernels/random_features.h"
#include "ops/common.h"
#include "ops/linear.h"
#include "ops/softmax.h"
#include "tensor/layout_check.h"

namespace qkv::inline v0::ops {

namespace {

constexpr const char* kWhere = "random_feature_attention";

void check_rows(const Tensor& x, const Shape& shape, DType dtype, const char* name) {
  require<ShapeError>(x.defined() && x.shape() == shape && x.dtype() == dtype, kWhere,
                      "expected {} {} of shape {}, got {} {}", name, dtype_name(dtype), shape.str(),
                      dtype_name(x.dtype()), x.shape().str());
  require<ShapeError>(x.stride(-1) == 1 || x.dim(-1) == 1, kWhere,
                      "expected contiguous channels in {}, got stride {}: call contiguous()", name,
                      x.stride(-1));
}

void check_input(const AttentionInput& input, const Tensor& projection) {
  require<UnsupportedError>(input.queries != nullptr && input.keys != nullptr &&
                                input.queries->starts == input.keys->starts,
                            kWhere,
                            "expected ragged self-attention: one layout for queries and keys");
  check_layout(*input.queries, kWhere);
  const Tensor &q = input.q, &k = input.k, &v = input.v;
  require<ShapeError>(q.rank() == 3 && k.rank() == 3 && v.rank() == 3, kWhere,
                      "expected q, k and v of rank 3 (tokens, heads, channels), got {}, {} and {}",
                      q.shape().str(), k.shape().str(), v.shape().str());
  const std::int64_t tokens = input.queries->tokens(), d = q.dim(2);
  require<ShapeError>(d >= 1 && v.dim(2) >= 1, kWhere, "expected at least 1 channel, got {} and {}",
                      d, v.dim(2));
  check_rows(q, {tokens, q.dim(1), d}, q.dtype(), "q");
  check_rows(k, {tokens, k.dim(1), d}, q.dtype(), "k");
  check_rows(v, {tokens, k.dim(1), v.dim(2)}, q.dtype(), "v");
  require<ShapeError>(k.dim(1) >= 1 && q.dim(1) >= 1 && q.dim(1) % k.dim(1) == 0, kWhere,
                      "expected query heads in whole groups per key/value head, got {} and {}",
                      q.dim(1), k.dim(1));
  require<ShapeError>(projection.defined() && projection.rank() == 2 && projection.dim(0) >= 1,
                      kWhere, "expected a projection [m, {}], got shape {}", d,
                      projection.shape().str());
  check_rows(projection, {projection.dim(0), d}, q.dtype(), "the projection");
}

double scale_of(const AttentionInput& input, const RandomFeatureOptions& options) {
  const double scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(input.q.dim(2))));
  require<ArgumentError>(std::isfinite(scale) && scale > 0, kWhere,
                         "expected a finite scale > 0, got {}", scale);
  return scale;
}

// projection * sqrt(scale), so that rows need no scaling.
template <class T>
Tensor scaled_projection(const Tensor& projection, double scale) {
  Tensor scaled = projection.contiguous().clone();
  for (std::int64_t i = 0; i < scaled.numel(); ++i)
    scaled.data<T>()[i] =
        static_cast<T>(static_cast<double>(scaled.data<T>()[i]) * std::sqrt(scale));
  return scaled;
}

Tensor as_matrix(const Tensor& x) {
  const Tensor rows = x.contiguous();
  return rows.reshape({rows.dim(0) * rows.dim(1), rows.dim(2)});
}

// Features of queries [T, H, m], each row on a scale of its own, which cancels; of keys
// [T, Hkv, m], see level_features; and the keys' decay [Hkv, T].
struct Features {
  Tensor projection, q, k, decay;
};

template <class T>
Features features_of(const AttentionInput& input, const Tensor& projection, bool causal,
                     double scale) {
  Features f;
  f.projection = scaled_projection<T>(projection, scale);
  const std::int64_t m = projection.dim(0), d = input.q.dim(2), tokens = input.q.dim(0);
  const std::int64_t heads = input.q.dim(1), kv_heads = input.k.dim(1);
  const auto project = [&](const Tensor& rows) {
    return linear(rows, f.projection, Tensor(), Activation::kNone, false).y;
  };
  f.q = softmax(project(as_matrix(input.q))).reshape({tokens, heads, m});
  const Tensor k = as_matrix(input.k), logits = project(k);
  f.k = softmax(logits).reshape({tokens, kv_heads, m});
  f.decay = Tensor::empty({kv_heads, tokens}, input.q.dtype());
  std::vector<double> levels(static_cast<std::size_t>(tokens * kv_heads));  // [Hkv, T]
  parallel_chunks(tokens * kv_heads, kChunkRows, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row)
      levels[static_cast<std::size_t>(row % kv_heads * tokens + row / kv_heads)] =
          kernels::feature_level(logits.data<T>() + row * m, f.k.data<T>() + row * m, m,
                                 k.data<T>() + row * d, d, scale);
  });
  const RaggedLayout& layout = *input.queries;
  parallel_for(layout.batch() * kv_heads, [&](std::int64_t item) {
    const std::int64_t b = item / kv_heads, kv = item % kv_heads;
    const std::int64_t start = layout.starts[static_cast<std::size_t>(b)];
    kernels::level_features(levels.data() + kv * tokens + start, layout.length(b), causal,
                            f.k.data<T>() + (start * kv_heads + kv) * m, kv_heads * m, m,
                            f.decay.data<T>() + kv * tokens + start);
  });
  return f;
}

template <class T>
kernels::AttentionOperand<T> operand(const Tensor& x) {
  return {x.data<std::remove_const_t<T>>(), x.stride(0), x.stride(1), 0};
}

template <class T>
kernels::LinearAttentionProblem<T> problem_of(const AttentionInput& input, const Features& f,
                                              bool causal) {
  kernels::LinearAttentionProblem<T> p;
  p.sequences = {input.queries->starts.data(), 0};
  p.batch = input.queries->batch();
  p.heads = input.q.dim(1);
  p.kv_heads = input.k.dim(1);
  p.head_size = f.q.dim(2);
  p.value_size = input.v.dim(2);
  p.causal = causal;
  p.features = true;
  p.least = 1e-30;  // below, features of queries and keys have nothing in common in fp32
  p.decay = causal ? f.decay.data<T>() : nullptr;
  p.q = operand<const T>(f.q);
  p.k = operand<const T>(f.k);
  p.v = operand<const T>(input.v);
  return p;
}

// From gradients of features, `dphi`, to those of rows x [T, H, D]: with g = phi dphi (overwrites
// dphi) dx = g W - with_norm scale x sum_r g_r.
template <class T>
Tensor rows_gradient(const Tensor& phi, const Tensor& dphi, const Tensor& x,
                     const Tensor& projection, double norm_scale) {
  const std::int64_t m = phi.dim(2), d = x.dim(2), rows = phi.dim(0) * phi.dim(1);
  const Tensor values = as_matrix(x);
  std::vector<double> sums(static_cast<std::size_t>(rows));
  parallel_chunks(rows, kChunkRows, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row)
      for (std::int64_t r = row * m; r < (row + 1) * m; ++r) {
        dphi.data<T>()[r] *= phi.data<T>()[r];
        sums[static_cast<std::size_t>(row)] += static_cast<double>(dphi.data<T>()[r]);
      }
  });
  const Tensor turned = projection.transpose(0, 1).contiguous();
  const Tensor dx = linear(dphi.reshape({rows, m}), turned, Tensor(), Activation::kNone, false).y;
  if (norm_scale != 0)
    parallel_chunks(rows, kChunkRows, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin * d; i < end * d; ++i)
        dx.data<T>()[i] -= static_cast<T>(norm_scale * sums[static_cast<std::size_t>(i / d)] *
                                          static_cast<double>(values.data<T>()[i]));
    });
  return dx.reshape(x.shape());
}

template <class T>
void backward(const Tensor& dout, const AttentionInput& input, const Tensor& projection,
              const RandomFeatureOptions& options, const AttentionGradients& gradients) {
  const double scale = scale_of(input, options);
  const Features f = features_of<T>(input, projection, options.causal, scale);
  const Tensor g = dout.contiguous();
  const Tensor dq = Tensor::empty(f.q.shape(), f.q.dtype());
  const Tensor dk = Tensor::empty(f.k.shape(), f.k.dtype());
  auto p = problem_of<T>(input, f, options.causal);
  p.dout = operand<const T>(g);
  p.dq = operand<T>(dq);
  p.dk = operand<T>(dk);
  p.dv = operand<T>(gradients.dv);
  kernels::linear_attention_backward(p);
  // A query's scale cancels, its norm with it.
  gradients.dq.copy_from(rows_gradient<T>(f.q, dq, input.q, f.projection, 0));
  gradients.dk.copy_from(rows_gradient<T>(f.k, dk, input.k, f.projection, scale));
}

}  // namespace

Tensor random_features(std::int64_t count, std::int64_t head_size, std::uint64_t seed,
                       DType dtype) {
  require<ArgumentError>(count >= 1 && head_size >= 1, "random_features",
                         "expected at least 1 feature of at least 1 channel, got {} of {}", count,
                         head_size);
  const std::vector<double> rows = kernels::orthogonal_features(count, head_size, seed);
  return dispatch_floating(dtype, "random_features", [&]<class T>(T) {
    Tensor projection = Tensor::empty({count, head_size}, dtype);
    for (std::int64_t i = 0; i < projection.numel(); ++i)
      projection.data<T>()[i] = static_cast<T>(rows[static_cast<std::size_t>(i)]);
    return projection;
  });
}

Tensor random_feature_attention(const AttentionInput& input, const Tensor& projection,
                                const RandomFeatureOptions& options) {
  check_input(input, projection);
  const double scale = scale_of(input, options);
  return dispatch_floating(input.q.dtype(), kWhere, [&]<class T>(T) {
    const Features f = features_of<T>(input, projection, options.causal, scale);
    auto p = problem_of<T>(input, f, options.causal);
    Tensor out = Tensor::empty({input.q.dim(0), input.q.dim(1), input.v.dim(2)}, input.q.dtype());
    p.out = operand<T>(out);
    kernels::linear_attention(p);
    return out;
  });
}

void random_feature_attention_backward(const Tensor& dout, const AttentionInput& input,
                                       const Tensor& projection,
                                       const RandomFeatureOptions& options,
                                       const AttentionGradients& gradients) {
  check_input(input, projection);
  const DType dtype = input.q.dtype();
  check_rows(gradients.dq, input.q.shape(), dtype, "dq");
  check_rows(gradients.dk, input.k.shape(), dtype, "dk");
  check_rows(gradients.dv, input.v.shape(), dtype, "dv");
  require<UnsupportedError>(!gradients.dbias.defined(), kWhere,
                            "expected no dbias: there is no bias in linear time");
  const Shape expected{input.q.dim(0), input.q.dim(1), input.v.dim(2)};
  require<ShapeError>(dout.defined() && dout.shape() == expected && dout.dtype() == dtype, kWhere,
                      "expected dout {} of shape {}, got {} {}", dtype_name(dtype), expected.str(),
                      dtype_name(dout.dtype()), dout.shape().str());
  dispatch_floating(dtype, kWhere,
                    [&]<class T>(T) { backward<T>(dout, input, projection, options, gradients); });
}

}  // namespace qkv::inline v0::ops
