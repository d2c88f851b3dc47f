#include "doctor/machine.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "qkv/attention.h"
#include "qkv/layout.h"

#include "base/cpu.h"
#include "base/random.h"
#include "doctor/recorder.h"
#include "kernels/registry.h"
#include "ops/activation.h"
#include "ops/linear.h"
#include "ops/norm.h"
#include "ops/rope.h"
#include "ops/softmax.h"

namespace qkv::inline v0::doctor {
namespace {

using Tensors = std::vector<Tensor>;

// Standard normal values that fp32 holds exactly, a function of shape and seed.
Tensor normal(const Shape& shape, std::uint64_t seed, DType dtype, double size = 1) {
  Random random(seed);
  Tensor x = Tensor::zeros(shape, DType::kFloat32);
  for (std::int64_t i = 0; i < x.numel(); ++i)
    x.data<float>()[i] = static_cast<float>(size * random.normal());
  return x.to(dtype);
}

Tensors linear_outputs(DType dtype, ops::Activation activation) {
  const Tensor x = normal({37, 70}, 1, dtype), w = normal({66, 70}, 2, dtype, 0.12);
  const Tensor bias = normal({66}, 3, dtype);
  const ops::LinearResult y = ops::linear(x, w, bias, activation);
  const std::int64_t width = y.y.dim(1);
  Tensors out{y.y.clone()};
  const Tensor dw = Tensor::zeros(w.shape(), dtype), db = Tensor::zeros(bias.shape(), dtype);
  const Tensor dx = ops::linear_backward(normal({37, width}, 4, dtype), x, w, activation, y.pre,
                                         true, {dw, db, ops::Into::kOverwrite})
                        .dx;
  out.insert(out.end(), {dx, dw, db});
  return out;
}

Tensors norm_outputs(DType dtype, ops::NormKind kind) {
  const Tensor x = normal({19, 133}, 5, dtype), gamma = normal({133}, 6, dtype);
  const Tensor beta = kind == ops::NormKind::kLayer ? normal({133}, 7, dtype) : Tensor();
  const ops::NormResult y = ops::norm(x, kind, gamma, beta, 1e-5);
  const Tensor dgamma = Tensor::zeros({133}, dtype);
  const Tensor dbeta = beta.defined() ? Tensor::zeros({133}, dtype) : Tensor();
  const Tensor dx = ops::norm_backward(normal({19, 133}, 8, dtype), x,
                                       {kind, gamma, y.mean, y.rstd}, {dgamma, dbeta});
  Tensors out{y.y, dx, dgamma};
  if (beta.defined()) out.push_back(dbeta);
  return out;
}

Tensors attention_outputs(DType dtype, std::int64_t d, const Mask& mask) {
  const std::int64_t n = 77, s = 77;
  ops::AttentionInput input{.q = normal({2, 4, n, d}, 9, dtype),
                            .k = normal({2, 2, s, d}, 10, dtype),
                            .v = normal({2, 2, s, d}, 11, dtype),
                            .heads_first = true};
  ops::AttentionOptions options;
  options.mask = mask;
  const ops::AttentionResult result = ops::attention(input, options);
  const ops::AttentionGradients g{Tensor::zeros(input.q.shape(), dtype),
                                  Tensor::zeros(input.k.shape(), dtype),
                                  Tensor::zeros(input.v.shape(), dtype)};
  ops::attention_backward(normal({2, 4, n, d}, 12, dtype), input, result, options, g);
  return {result.out, g.dq, g.dk, g.dv};
}

Tensors linear_attention_outputs(DType dtype, bool causal) {
  const std::vector<std::int64_t> lengths{33, 1, 50};
  const RaggedLayout layout = RaggedLayout::from_lengths(lengths);
  const ops::AttentionInput input{.q = normal({84, 2, 24}, 13, dtype),
                                  .k = normal({84, 2, 24}, 14, dtype),
                                  .v = normal({84, 2, 24}, 15, dtype),
                                  .queries = &layout,
                                  .keys = &layout};
  return {ops::linear_attention(input, causal)};
}

Tensors softmax_outputs(DType dtype) {
  const Tensor y = ops::softmax(normal({21, 131}, 16, dtype, 4));
  return {y, ops::softmax_backward(normal({21, 131}, 17, dtype), y)};
}

Tensors rope_outputs(DType dtype) {
  const Tensor x = normal({40, 3, 34}, 18, dtype);
  std::vector<std::int32_t> positions;
  for (std::int32_t i = 0; i < 40; ++i) positions.push_back(97 * i);
  ops::rope_inplace(x, positions, {});
  return {x};
}

double relative_error(const Tensor& got, const Tensor& truth) {
  if (!(got.shape() == truth.shape())) return std::numeric_limits<double>::infinity();
  const Tensor a = got.to(DType::kFloat64).contiguous(), b = truth.contiguous();
  double most = 0, size = 1e-30;
  for (std::int64_t i = 0; i < a.numel(); ++i) {
    const double difference = std::fabs(a.data<double>()[i] - b.data<double>()[i]);
    if (std::isnan(difference)) return std::numeric_limits<double>::infinity();
    most = std::max(most, difference);
    size = std::max(size, std::fabs(b.data<double>()[i]));
  }
  return most / size;
}

}  // namespace

std::vector<KernelCase> kernel_cases() {
  std::vector<KernelCase> cases;
  for (const auto activation :
       {ops::Activation::kNone, ops::Activation::kGelu, ops::Activation::kGeluTanh,
        ops::Activation::kRelu, ops::Activation::kSilu, ops::Activation::kSwiglu,
        ops::Activation::kGeglu, ops::Activation::kTanh, ops::Activation::kGegluTanh}) {
    cases.push_back({fmt::format("linear, {}", ops::activation_name(activation)), 1e-5,
                     [=](DType dtype) { return linear_outputs(dtype, activation); }});
  }
  cases.push_back(
      {"layer norm", 1e-5, [](DType dtype) { return norm_outputs(dtype, ops::NormKind::kLayer); }});
  cases.push_back(
      {"RMS norm", 1e-5, [](DType dtype) { return norm_outputs(dtype, ops::NormKind::kRms); }});
  cases.push_back({"softmax", 1e-5, softmax_outputs});
  cases.push_back({"rotary positions", 1e-5, rope_outputs});
  const std::pair<const char*, Mask> masks[] = {
      {"full", Mask()},
      {"causal", Mask::causal()},
      {"window", Mask::window(9)},
      {"lengths", Mask::lengths({77, 13})},
  };
  for (const auto& [name, mask] : masks) {
    for (const std::int64_t d : {24, 64, 80}) {
      const Mask copy = mask;
      cases.push_back({fmt::format("attention, {}, head size {}", name, d), 2e-5,
                       [=](DType dtype) { return attention_outputs(dtype, d, copy); }});
    }
  }
  for (const bool causal : {false, true}) {
    cases.push_back({causal ? "linear attention, causal" : "linear attention", 5e-5,
                     [=](DType dtype) { return linear_attention_outputs(dtype, causal); }});
  }
  return cases;
}

std::vector<KernelCheck> compare_kernels(const std::vector<KernelCase>& cases) {
  std::vector<KernelCheck> checks;
  for (const KernelCase& c : cases) {
    const Tensors truth = c.run(DType::kFloat64);
    for (const char* implementation : kernels::runnable_implementations()) {
      const kernels::ImplementationScope scope(implementation);
      const Tensors got = c.run(DType::kFloat32);
      KernelCheck check{c.name, implementation, 0, c.tolerance};
      for (std::size_t i = 0; i < truth.size(); ++i)
        check.error = std::max(check.error, relative_error(got[i], truth[i]));
      checks.push_back(check);
    }
  }
  return checks;
}

Report kernel_report(const std::vector<KernelCheck>& checks) {
  Recorder record;
  for (const KernelCheck& check : checks) {
    if (check.good()) continue;
    Finding& finding =
        record.error("kernel", fmt::format("{}: {}", check.implementation, check.name),
                     {{"relative error", check.error}, {"tolerance", check.tolerance}});
    finding.follows.clear();  // each kernel stands for itself
  }
  for (const Isa isa : {Isa::kAvx512, Isa::kAvx2}) {
    if (isa > active_isa())
      record.skip("kernel",
                  fmt::format("{} is not in use here: {}", isa_name(isa), active_isa_reason()));
  }
  return record.take();
}

Report check_machine() { return kernel_report(compare_kernels(kernel_cases())); }

}  // namespace qkv::inline v0::doctor
