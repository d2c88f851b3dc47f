// fused-equals-manual: attention in one call beside the same formula step by step.
#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include <fmt/format.h>

#include "qkv/attention.h"

#include "lab/draw.h"
#include "lab/lab.h"
#include "ops/linear.h"
#include "ops/softmax.h"

namespace qkv::inline v0::lab {

namespace {

constexpr std::int64_t kLength = 96, kWidth = 64;
constexpr double kBound64 = 1e-15;

struct Pass {
  Tensor out, dq, dk, dv;  // [N, D]
};

Tensor scaled(const Tensor& x, double factor) {
  const Tensor y = x.to(DType::kFloat64).clone();
  for (std::int64_t i = 0; i < y.numel(); ++i) y.data<double>()[i] *= factor;
  return y.to(x.dtype());
}

Tensor flipped(const Tensor& x) { return x.transpose(0, 1).contiguous(); }

// a b^T.
Tensor product(const Tensor& a, const Tensor& b) { return ops::linear(a, b, Tensor()).y; }

// softmax(q k^T / sqrt(d)) v and its gradients, every step an op of its own.
Pass manual(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& dout) {
  const double scale = 1 / std::sqrt(static_cast<double>(kWidth));
  const Tensor weights = ops::softmax(scaled(product(q, k), scale));
  Pass pass;
  pass.out = product(weights, flipped(v));
  pass.dv = product(flipped(weights), flipped(dout));
  const Tensor dscores = scaled(ops::softmax_backward(product(dout, v), weights), scale);
  pass.dq = product(dscores, flipped(k));
  pass.dk = product(flipped(dscores), flipped(q));
  return pass;
}

Pass fused(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& dout) {
  const Shape padded{1, kLength, 1, kWidth}, flat{kLength, kWidth};
  ops::AttentionInput input;
  input.q = q.reshape(padded);
  input.k = k.reshape(padded);
  input.v = v.reshape(padded);
  const ops::AttentionResult result = ops::attention(input, {});
  const ops::AttentionGradients g{Tensor::empty(padded, q.dtype()),
                                  Tensor::empty(padded, q.dtype()),
                                  Tensor::empty(padded, q.dtype())};
  ops::attention_backward(dout.reshape(padded), input, result, {}, g);
  return {result.out.reshape(flat), g.dq.reshape(flat), g.dk.reshape(flat), g.dv.reshape(flat)};
}

double largest_difference(const Tensor& a, const Tensor& b) {
  const Tensor x = a.to(DType::kFloat64), y = b.to(DType::kFloat64);
  double largest = 0;
  for (std::int64_t i = 0; i < x.numel(); ++i)
    largest = std::max(largest, std::abs(x.data<double>()[i] - y.data<double>()[i]));
  return largest;
}

}  // namespace

Result run_fused_equals_manual(const Options& options) {
  Result result;
  result.table.columns = {"format", "output", "dq", "dk", "dv", "rounding step"};
  result.measured = Json::object();
  result.measured["length"] = kLength;
  result.measured["d_k"] = kWidth;
  const struct {
    const char* name;
    DType storage, arithmetic;
    double step;  // distance of 1 to the next number
  } formats[] = {{"float64", DType::kFloat64, DType::kFloat64, 2.22e-16},
                 {"float32", DType::kFloat32, DType::kFloat32, 1.19e-7},
                 {"bfloat16", DType::kBFloat16, DType::kFloat32, 7.81e-3}};
  double output_64 = 0;
  bool close = true;
  for (const auto& format : formats) {
    Random random(options.seed);
    // bfloat16 is a storage type: inputs and results are rounded to it, arithmetic is float32.
    const auto stored = [&](const Tensor& x) { return x.to(format.storage).to(format.arithmetic); };
    std::array<Tensor, 4> x;
    for (Tensor& t : x) t = stored(normal_tensor(random, {kLength, kWidth}, DType::kFloat64));
    const Pass a = fused(x[0], x[1], x[2], x[3]), b = manual(x[0], x[1], x[2], x[3]);
    const std::array<double, 4> differences{largest_difference(stored(a.out), stored(b.out)),
                                            largest_difference(stored(a.dq), stored(b.dq)),
                                            largest_difference(stored(a.dk), stored(b.dk)),
                                            largest_difference(stored(a.dv), stored(b.dv))};
    std::vector<std::string> row{format.name};
    Json figures = Json::object();
    constexpr std::array kNames{"out", "dq", "dk", "dv"};
    for (std::size_t i = 0; i < differences.size(); ++i) {
      row.push_back(fmt::format("{:.2e}", differences[i]));
      figures[kNames[i]] = differences[i];
      close &= differences[i] <= 32 * format.step;
    }
    row.push_back(fmt::format("{:.2e}", format.step));
    result.table.rows.push_back(std::move(row));
    result.measured[format.name] = std::move(figures);
    if (format.storage == DType::kFloat64) output_64 = differences[0];
  }
  result.holds = close && output_64 <= kBound64 ? Holds::kTrue : Holds::kFalse;
  result.verdict =
      fmt::format("the largest difference of an output is {:.2e} in float64 (bound {:.0e})",
                  output_64, kBound64);
  return result;
}

}  // namespace qkv::inline v0::lab
