#include "qkv/attention.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "kernels/attention_linear.h"
#include "kernels/attention_list.h"
#include "tensor/layout_check.h"

namespace qkv::inline v0::ops {

namespace {

using kernels::AttentionMaskArray;
using kernels::AttentionOperand;
using kernels::AttentionSequences;

constexpr const char* kWhere = "attention";

// Shapes of an input, after every check on them.
struct Sizes {
  std::int64_t batch, heads, kv_heads, head_size, value_size;
  std::int64_t n, s;  // longest sequence of queries and of keys
  AttentionSequences queries, keys;
  bool ragged, heads_first;

  int head_dim() const { return ragged ? 1 : heads_first ? 1 : 2; }
  int token_dim() const { return ragged ? 0 : heads_first ? 2 : 1; }
};

void check_operand(const Tensor& tensor, const char* name, int rank, DType dtype) {
  require<ShapeError>(tensor.defined(), kWhere, "expected a tensor {}, got an undefined one", name);
  require<ShapeError>(tensor.rank() == rank, kWhere, "expected {} of rank {} ({}), got shape {}",
                      name, rank,
                      rank == 3 ? "tokens, heads, channels" : "batch, tokens, heads, channels",
                      tensor.shape().str());
  require<ShapeError>(tensor.dtype() == dtype, kWhere, "expected {} as {} like q, got {}", name,
                      dtype_name(dtype), dtype_name(tensor.dtype()));
  require<ShapeError>(tensor.dim(-1) >= 1, kWhere,
                      "expected at least 1 channel in {}, got shape {}", name,
                      tensor.shape().str());
  require<ShapeError>(tensor.stride(-1) == 1 || tensor.dim(-1) == 1, kWhere,
                      "expected contiguous channels in {}, got stride {}: call contiguous()", name,
                      tensor.stride(-1));
}

AttentionSequences ragged_sequences(const RaggedLayout& layout, const Tensor& tensor,
                                    const char* name) {
  check_layout(layout, kWhere);
  require<ShapeError>(layout.tokens() == tensor.dim(0), kWhere,
                      "expected {} with the {} tokens of its layout, got {}", name, layout.tokens(),
                      tensor.dim(0));
  return {layout.starts.data(), 0};
}

Sizes check_input(const AttentionInput& input) {
  require<ShapeError>(input.q.defined(), kWhere, "expected a tensor q, got an undefined one");
  const DType dtype = input.q.dtype();
  require<ShapeError>(is_floating(dtype), kWhere,
                      "expected float32, float64, bfloat16 or float16, got {}", dtype_name(dtype));
  require<ShapeError>((input.queries == nullptr) == (input.keys == nullptr), kWhere,
                      "expected layouts of queries and of keys, or neither, got one");
  Sizes sizes{};
  sizes.ragged = input.queries != nullptr;
  sizes.heads_first = input.heads_first && !sizes.ragged;
  const int rank = sizes.ragged ? 3 : 4;
  check_operand(input.q, "q", rank, dtype);
  check_operand(input.k, "k", rank, dtype);
  check_operand(input.v, "v", rank, dtype);
  sizes.heads = input.q.dim(sizes.head_dim());
  sizes.kv_heads = input.k.dim(sizes.head_dim());
  sizes.head_size = input.q.dim(-1);
  sizes.value_size = input.v.dim(-1);
  require<ShapeError>(input.k.dim(-1) == sizes.head_size, kWhere,
                      "expected q and k of equal head size, got q {} and k {}", sizes.head_size,
                      input.k.dim(-1));
  require<ShapeError>(input.v.dim(sizes.head_dim()) == sizes.kv_heads, kWhere,
                      "expected k and v with equal heads, got k {} and v {}", sizes.kv_heads,
                      input.v.dim(sizes.head_dim()));
  require<ShapeError>(sizes.kv_heads >= 1 && sizes.heads >= 1 && sizes.heads % sizes.kv_heads == 0,
                      kWhere,
                      "expected query heads in whole groups per key/value head, got {} and {}",
                      sizes.heads, sizes.kv_heads);
  require<ShapeError>(input.k.dim(sizes.token_dim()) == input.v.dim(sizes.token_dim()), kWhere,
                      "expected k and v of equal length, got k {} and v {}",
                      input.k.dim(sizes.token_dim()), input.v.dim(sizes.token_dim()));
  if (sizes.ragged) {
    sizes.queries = ragged_sequences(*input.queries, input.q, "q");
    sizes.keys = ragged_sequences(*input.keys, input.k, "k");
    sizes.batch = input.queries->batch();
    require<ShapeError>(input.keys->batch() == sizes.batch, kWhere,
                        "expected as many key sequences as query sequences, got {} and {}",
                        input.keys->batch(), sizes.batch);
    sizes.n = input.queries->max_length();
    sizes.s = input.keys->max_length();
    return sizes;
  }
  sizes.batch = input.q.dim(0);
  require<ShapeError>(input.k.dim(0) == sizes.batch && input.v.dim(0) == sizes.batch, kWhere,
                      "expected q, k, v of one batch size, got {}, {} and {}", sizes.batch,
                      input.k.dim(0), input.v.dim(0));
  sizes.n = input.q.dim(sizes.token_dim());
  sizes.s = input.k.dim(sizes.token_dim());
  sizes.queries = {nullptr, sizes.n};
  sizes.keys = {nullptr, sizes.s};
  return sizes;
}

template <class T, class U>
AttentionOperand<T> operand(const Tensor& tensor, const Sizes& sizes) {
  return {tensor.data<U>(), tensor.stride(sizes.token_dim()), tensor.stride(sizes.head_dim()),
          sizes.ragged ? 0 : tensor.stride(0)};
}

Shape with_channels(const Tensor& q, std::int64_t channels) {
  Shape shape = q.shape();
  shape[shape.rank() - 1] = channels;
  return shape;
}

// A problem together with the arrays it points to.
template <class T>
struct Prepared {
  kernels::AttentionProblem<T> problem;
  std::vector<AttentionMaskArray> arrays;
  std::vector<kernels::AttentionWindow> windows;
  std::vector<std::int64_t> weight_offsets;  // B + 1
};

// A problem points into `mask`, which must outlive it.
void prepare_mask(const Mask& mask, const Sizes& sizes, kernels::AttentionMask& to,
                  std::vector<AttentionMaskArray>& arrays,
                  std::vector<kernels::AttentionWindow>& windows) {
  mask.check(sizes.batch, sizes.heads, sizes.n, sizes.s);
  const std::int64_t reach = sizes.n + sizes.s;  // no key is farther: kernels add to the limits
  to.left = std::min(mask.left(), reach);
  to.right = std::min(mask.right(), reach);
  to.lengths = mask.lengths() ? mask.lengths()->data() : nullptr;
  to.slopes = mask.slopes() ? mask.slopes()->data() : nullptr;
  for (const Mask::Window& w : mask.windows())
    windows.push_back({std::min(w.left, reach), std::min(w.right, reach), w.globals.data(),
                       static_cast<std::int64_t>(w.globals.size())});
  to.windows = windows.data();
  to.window_count = static_cast<int>(windows.size());
  for (const Mask::Array& array : mask.arrays()) {
    AttentionMaskArray a;
    a.data = array.values.raw();
    a.kind = array.additive ? AttentionMaskArray::Kind::kAdditive
             : array.keep   ? AttentionMaskArray::Kind::kKeep
                            : AttentionMaskArray::Kind::kBlock;
    a.element_bytes = static_cast<std::uint8_t>(dtype_size(array.values.dtype()));
    for (int i = 0; i < 4; ++i)
      a.strides[i] = array.values.dim(i) == 1 ? 0 : array.values.stride(i);
    arrays.push_back(a);
  }
  to.arrays = arrays.data();
  to.array_count = static_cast<int>(arrays.size());
}

void prepare_dropout(const AttentionInput& input, const AttentionOptions& options,
                     const Sizes& sizes, kernels::AttentionDropout& to) {
  const double p = options.dropout_p;
  require<ArgumentError>(p >= 0 && p <= 1, kWhere,
                         "expected a dropout probability in [0, 1], got {}", p);
  if (p == 0) return;
  require<UnsupportedError>(sizes.heads <= 65536, kWhere,
                            "expected at most 65536 heads with dropout, got {}", sizes.heads);
  to.threshold = static_cast<std::uint64_t>(std::llround(p * 4294967296.0));
  to.keep_scale = p < 1 ? 1 / (1 - p) : 0;
  to.key = options.dropout_key.key;
  to.step = options.dropout_key.step;
  if (input.queries && !input.queries->samples.empty()) {
    to.samples = input.queries->samples.data();
  }
}

// Everything but the outputs.
template <class T>
Prepared<T> prepare(const AttentionInput& input, const AttentionOptions& options,
                    const Sizes& sizes) {
  Prepared<T> prepared;
  kernels::AttentionProblem<T>& p = prepared.problem;
  p.queries = sizes.queries;
  p.keys = sizes.keys;
  p.batch = sizes.batch;
  p.heads = sizes.heads;
  p.kv_heads = sizes.kv_heads;
  p.head_size = sizes.head_size;
  p.value_size = sizes.value_size;
  p.scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(sizes.head_size)));
  using Statistic = typename kernels::AttentionProblem<T>::Statistic;
  require<ArgumentError>(std::isfinite(static_cast<Statistic>(p.scale)), kWhere,
                         "expected a scale that is finite as {}, got {}",
                         dtype_name(dtype_of<Statistic>()), p.scale);
  if (options.softcap) {
    p.softcap = *options.softcap;
    require<ArgumentError>(std::isfinite(static_cast<Statistic>(p.softcap)) && p.softcap > 0 &&
                               std::isfinite(static_cast<Statistic>(p.scale / p.softcap)),
                           kWhere,
                           "expected a softcap > 0 that is finite as {} and not tiny, got {}",
                           dtype_name(dtype_of<Statistic>()), p.softcap);
  }
  prepare_mask(options.mask, sizes, p.mask, prepared.arrays, prepared.windows);
  prepare_dropout(input, options, sizes, p.dropout);
  p.q = operand<const T, T>(input.q, sizes);
  p.k = operand<const T, T>(input.k, sizes);
  p.v = operand<const T, T>(input.v, sizes);
  return prepared;
}

// Empty when `implementation` may run under the options, else the reason.
template <class T>
std::string refusal(const kernels::AttentionImplementation<T>& implementation,
                    const kernels::AttentionProblem<T>& problem, const AttentionOptions& options) {
  if (options.backend == AttentionBackend::kNaive && !implementation.is_naive())
    return "the naive backend is asked for";
  if (options.backend == AttentionBackend::kFlash && implementation.is_naive())
    return "the flash backend is asked for";
  if (options.return_weights && !implementation.is_naive())
    return "the weights are asked for, which it never forms as a whole";
  return implementation.refusal(problem);
}

template <class T>
const kernels::AttentionImplementation<T>& choose(const kernels::AttentionProblem<T>& problem,
                                                  const AttentionOptions& options) {
  std::string reasons;
  for (const auto& implementation : kernels::attention_implementations<T>()) {
    const std::string reason = refusal(implementation, problem, options);
    if (reason.empty()) return implementation;
    reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", implementation.name, reason);
  }
  fail<UnsupportedError>(kWhere, "expected a problem that the asked backend takes, got {} ({})",
                         dtype_name(dtype_of<T>()), reasons);
}

template <class T>
void allocate_weights(Prepared<T>& prepared, const Sizes& sizes, AttentionResult& result) {
  using Statistic = typename kernels::AttentionProblem<T>::Statistic;
  std::int64_t total = 0;
  for (std::int64_t b = 0; b < sizes.batch; ++b) {
    prepared.weight_offsets.push_back(total);
    total += sizes.heads * sizes.queries.length(b) * sizes.keys.length(b);
  }
  result.weights =
      Tensor::empty(sizes.ragged ? Shape{total} : Shape{sizes.batch, sizes.heads, sizes.n, sizes.s},
                    dtype_of<Statistic>());
  prepared.problem.weights = result.weights.template data<Statistic>();
  prepared.problem.weight_offsets = prepared.weight_offsets.data();
}

template <class T>
AttentionResult run_forward(const AttentionInput& input, const AttentionOptions& options,
                            const Sizes& sizes) {
  Prepared<T> prepared = prepare<T>(input, options, sizes);
  kernels::AttentionProblem<T>& p = prepared.problem;
  using Statistic = typename kernels::AttentionProblem<T>::Statistic;
  AttentionResult result;
  result.out = Tensor::empty(with_channels(input.q, sizes.value_size), dtype_of<T>());
  result.lse = Tensor::empty(
      sizes.ragged ? Shape{sizes.heads, input.q.dim(0)} : Shape{sizes.batch, sizes.heads, sizes.n},
      dtype_of<Statistic>());
  p.out = operand<T, T>(result.out, sizes);
  p.lse = result.lse.template data<Statistic>();
  if (options.return_weights) allocate_weights(prepared, sizes, result);
  choose(p, options).forward(p);
  return result;
}

void check_gradient(const Tensor& gradient, const Tensor& of, const char* name) {
  check_operand(gradient, name, of.rank(), of.dtype());
  require<ShapeError>(gradient.shape() == of.shape(), kWhere, "expected {} of shape {}, got {}",
                      name, of.shape().str(), gradient.shape().str());
}

void check_gradients(const AttentionInput& input, const AttentionGradients& gradients) {
  check_gradient(gradients.dq, input.q, "dq");
  check_gradient(gradients.dk, input.k, "dk");
  check_gradient(gradients.dv, input.v, "dv");
}

kernels::AttentionBiasGradient bias_gradient(const Tensor& dbias, const Sizes& sizes) {
  kernels::AttentionBiasGradient to;
  if (!dbias.defined()) return to;
  require<ShapeError>(dbias.dtype() == DType::kFloat32 || dbias.dtype() == DType::kFloat64, kWhere,
                      "expected dbias as float32 or float64, got {}", dtype_name(dbias.dtype()));
  require<ShapeError>(dbias.rank() == 2 || dbias.rank() == 4, kWhere,
                      "expected dbias of shape [N, S], [B, 1, 1, S], [B, 1, N, S] or [B, H, N, S], "
                      "got {}",
                      dbias.shape().str());
  const std::int64_t full[4] = {sizes.batch, sizes.heads, sizes.n, sizes.s};
  const int missing = 4 - dbias.rank();
  for (int d = 0; d < 4; ++d) {
    to.sizes[d] = d < missing ? 1 : dbias.dim(d - missing);
    require<ShapeError>(to.sizes[d] == full[d] || to.sizes[d] == 1, kWhere,
                        "expected a dbias that broadcasts to [{}, {}, {}, {}], got {}", sizes.batch,
                        sizes.heads, sizes.n, sizes.s, dbias.shape().str());
    to.strides[d] = to.sizes[d] == 1 ? 0 : dbias.stride(d - missing);
  }
  to.data = dbias.raw();
  to.is_double = dbias.dtype() == DType::kFloat64;
  return to;
}

// dout as the kernels want it: shaped like out, contiguous channels.
Tensor checked_dout(const Tensor& dout, const AttentionInput& input) {
  const Shape expected = with_channels(input.q, input.v.dim(-1));
  require<ShapeError>(dout.defined() && dout.shape() == expected && dout.dtype() == input.q.dtype(),
                      kWhere, "expected dout {} of shape {}, got {} {}",
                      dtype_name(input.q.dtype()), expected.str(), dtype_name(dout.dtype()),
                      dout.shape().str());
  return dout.stride(-1) == 1 ? dout : dout.contiguous();
}

// Gradients of the outputs.
struct Upstream {
  Tensor dout, dlse;
};

template <class T>
void run_backward(const Upstream& upstream, const AttentionInput& input,
                  const AttentionResult& result, const AttentionOptions& options,
                  const AttentionGradients& gradients, const Sizes& sizes) {
  using Statistic = typename kernels::AttentionProblem<T>::Statistic;
  check_gradients(input, gradients);
  const Tensor g = checked_dout(upstream.dout, input);
  require<ShapeError>(
      result.out.defined() && result.out.shape() == g.shape() && result.out.dtype() == g.dtype() &&
          result.lse.defined() && result.lse.numel() == g.numel() / sizes.value_size &&
          result.lse.dtype() == dtype_of<Statistic>(),
      kWhere, "expected out and lse of the forward pass over the same input, got {} {}",
      result.out.shape().str(), result.lse.shape().str());
  require<ShapeError>(!upstream.dlse.defined() || (upstream.dlse.shape() == result.lse.shape() &&
                                                   upstream.dlse.dtype() == result.lse.dtype()),
                      kWhere, "expected dlse {} of shape {}, got {} {}",
                      dtype_name(result.lse.dtype()), result.lse.shape().str(),
                      dtype_name(upstream.dlse.dtype()), upstream.dlse.shape().str());
  AttentionOptions backward_options = options;
  backward_options.return_weights = false;
  Prepared<T> prepared = prepare<T>(input, backward_options, sizes);
  kernels::AttentionProblem<T>& p = prepared.problem;
  const Tensor out = result.out.contiguous(), lse = result.lse.contiguous();
  const Tensor dlse = upstream.dlse.defined() ? upstream.dlse.contiguous() : Tensor();
  if (dlse.defined()) p.dlse = dlse.data<Statistic>();
  p.out = operand<T, T>(out, sizes);
  p.lse = lse.data<Statistic>();
  p.dout = operand<const T, T>(g, sizes);
  p.dq = operand<T, T>(gradients.dq, sizes);
  p.dk = operand<T, T>(gradients.dk, sizes);
  p.dv = operand<T, T>(gradients.dv, sizes);
  p.dbias = bias_gradient(gradients.dbias, sizes);
  choose(p, backward_options).backward(p);
}

// Calls body with a value of the element type.
template <class Body>
auto with_type(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::kFloat64:
      return body(double{});
    case DType::kBFloat16:
      return body(BFloat16{});
    case DType::kFloat16:
      return body(Float16{});
    default:
      return body(float{});
  }
}

template <class T>
std::vector<AttentionChoice> explain(const AttentionInput& input, const AttentionOptions& options,
                                     const Sizes& sizes) {
  const Prepared<T> prepared = prepare<T>(input, options, sizes);
  std::vector<AttentionChoice> choices;
  for (const auto& implementation : kernels::attention_implementations<T>()) {
    choices.push_back({implementation.name, refusal(implementation, prepared.problem, options)});
    if (choices.back().refusal.empty()) break;
  }
  return choices;
}

template <class T>
kernels::LinearAttentionProblem<T> prepare_linear(const AttentionInput& input, bool causal,
                                                  const Sizes& sizes) {
  require<UnsupportedError>(sizes.ragged && input.queries->starts == input.keys->starts,
                            "linear_attention",
                            "expected ragged self-attention: one layout for queries and keys");
  require<ShapeError>(input.q.dtype() == dtype_of<T>(), "linear_attention",
                      "expected float32 or float64, got {}", dtype_name(input.q.dtype()));
  kernels::LinearAttentionProblem<T> p;
  p.sequences = sizes.queries;
  p.batch = sizes.batch;
  p.heads = sizes.heads;
  p.kv_heads = sizes.kv_heads;
  p.head_size = sizes.head_size;
  p.value_size = sizes.value_size;
  p.causal = causal;
  p.q = operand<const T, T>(input.q, sizes);
  p.k = operand<const T, T>(input.k, sizes);
  p.v = operand<const T, T>(input.v, sizes);
  return p;
}

template <class T>
Tensor run_linear(const AttentionInput& input, bool causal, const Sizes& sizes) {
  auto p = prepare_linear<T>(input, causal, sizes);
  Tensor out = Tensor::empty(with_channels(input.q, sizes.value_size), dtype_of<T>());
  p.out = operand<T, T>(out, sizes);
  kernels::linear_attention(p);
  return out;
}

template <class T>
void run_linear_backward(const Tensor& dout, const AttentionInput& input, bool causal,
                         const AttentionGradients& gradients, const Sizes& sizes) {
  auto p = prepare_linear<T>(input, causal, sizes);
  check_gradients(input, gradients);
  const Tensor g = checked_dout(dout, input);
  p.dout = operand<const T, T>(g, sizes);
  p.dq = operand<T, T>(gradients.dq, sizes);
  p.dk = operand<T, T>(gradients.dk, sizes);
  p.dv = operand<T, T>(gradients.dv, sizes);
  kernels::linear_attention_backward(p);
}

}  // namespace

AttentionResult attention(const AttentionInput& input, const AttentionOptions& options) {
  const Sizes sizes = check_input(input);
  return with_type(input.q.dtype(),
                   [&]<class T>(T) { return run_forward<T>(input, options, sizes); });
}

void attention_backward(const Tensor& dout, const AttentionInput& input,
                        const AttentionResult& result, const AttentionOptions& options,
                        const AttentionGradients& gradients) {
  attention_backward(dout, Tensor(), input, result, options, gradients);
}

void attention_backward(const Tensor& dout, const Tensor& dlse, const AttentionInput& input,
                        const AttentionResult& result, const AttentionOptions& options,
                        const AttentionGradients& gradients) {
  const Sizes sizes = check_input(input);
  with_type(input.q.dtype(), [&]<class T>(T) {
    run_backward<T>({dout, dlse}, input, result, options, gradients, sizes);
  });
}

std::vector<AttentionChoice> explain_attention(const AttentionInput& input,
                                               const AttentionOptions& options) {
  const Sizes sizes = check_input(input);
  return with_type(input.q.dtype(), [&]<class T>(T) { return explain<T>(input, options, sizes); });
}

Tensor linear_attention(const AttentionInput& input, bool causal) {
  const Sizes sizes = check_input(input);
  return input.q.dtype() == DType::kFloat64 ? run_linear<double>(input, causal, sizes)
                                            : run_linear<float>(input, causal, sizes);
}

void linear_attention_backward(const Tensor& dout, const AttentionInput& input, bool causal,
                               const AttentionGradients& gradients) {
  const Sizes sizes = check_input(input);
  if (input.q.dtype() == DType::kFloat64)
    run_linear_backward<double>(dout, input, causal, gradients, sizes);
  else
    run_linear_backward<float>(dout, input, causal, gradients, sizes);
}

}  // namespace qkv::inline v0::ops
