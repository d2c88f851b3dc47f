// Passes over memory: each beside a probe that moves the same arrays and does nothing with them,
// and, where there is much arithmetic, beside its probes as well.
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "qkv/layout.h"

#include "bench/inputs.h"
#include "bench/suites.h"
#include "ops/activation.h"
#include "ops/norm.h"
#include "ops/optimizer.h"
#include "ops/softmax.h"

namespace qkv::inline v0::bench {
namespace {

// Arithmetic counts the vector instructions of the AVX-512 kernels (other than loads and stores);
// passes that have a few per element leave it out.
struct Pass {
  std::string name;
  Traffic traffic;
  std::function<void()> body;
  Arithmetic arithmetic = {};
};

// Tensors [T, C] that the passes share, and one sequence per row group for dropout's keys.
struct PassInputs {
  PassInputs(std::int64_t rows, std::int64_t width, std::uint64_t seed)
      : x(random_tensor({rows, width}, seed, 1)),
        y(random_tensor({rows, width}, seed, 2)),
        z(random_tensor({rows, width}, seed, 3)),
        pair(random_tensor({rows, 2 * width}, seed, 4)),
        gamma(random_tensor({width}, seed, 5)),
        beta(random_tensor({width}, seed, 6)),
        dgamma(Tensor::zeros({width})),
        dbeta(Tensor::zeros({width})),
        mean(Tensor::zeros({rows})),
        rstd(Tensor::zeros({rows})),
        first(Tensor::zeros({rows, width})),
        second(Tensor::zeros({rows, width})),
        targets(static_cast<std::size_t>(rows)),
        layout(RaggedLayout::from_lengths(
            std::vector<std::int64_t>(static_cast<std::size_t>(rows / 16), 16))) {
    rstd.fill(1);
    for (std::size_t i = 0; i < targets.size(); ++i)
      targets[i] = static_cast<std::int32_t>(static_cast<std::int64_t>(i) % width);
    dropout.p = 0.2;
    dropout.key = {seed, 1};
    dropout.layout = &layout;
  }
  PassInputs(const PassInputs&) = delete;
  PassInputs& operator=(const PassInputs&) = delete;

  Tensor x, y, z, pair, gamma, beta, dgamma, dbeta, mean, rstd, first, second;
  std::vector<std::int32_t> targets;
  RaggedLayout layout;
  ops::DropoutOptions dropout;
};

std::vector<Pass> norm_passes(PassInputs& in) {
  using ops::NormKind;
  const auto backward = [&in](NormKind kind) {
    ops::norm_backward(in.y, in.x, {kind, in.gamma, in.mean, in.rstd},
                       {in.dgamma, kind == NormKind::kLayer ? in.dbeta : Tensor()}, in.z);
  };
  return {
      {"layer norm",
       {1, 0, 1},
       [&in] { ops::norm(in.x, NormKind::kLayer, in.gamma, in.beta, 1e-5); },
       {0, 9}},
      {"layer norm backward", {3, 0, 1}, [backward] { backward(NormKind::kLayer); }, {0, 14}},
      {"rms norm", {1, 0, 1}, [&in] { ops::norm(in.x, NormKind::kRms, in.gamma, Tensor(), 1e-5); }},
      {"rms norm backward", {3, 0, 1}, [backward] { backward(NormKind::kRms); }},
      {"residual + layer norm",
       {2, 0, 2},
       [&in] { ops::add_norm(in.x, in.y, {}, NormKind::kLayer, in.gamma, in.beta, 1e-5); }},
      {"residual + dropout + layer norm",
       {2, 0, 2},
       [&in] { ops::add_norm(in.x, in.y, in.dropout, NormKind::kLayer, in.gamma, in.beta, 1e-5); },
       {0, 29}},
  };
}

std::vector<Pass> other_passes(PassInputs& in) {
  using ops::Activation;
  return {
      {"add", {2, 0, 1}, [&in] { ops::add(in.x, in.y); }},
      {"dropout", {1, 0, 1}, [&in] { ops::dropout(in.x, in.dropout); }, {0, 19}},
      {"residual + dropout",
       {2, 0, 1},
       [&in] { ops::add_dropout(in.x, in.y, in.dropout); },
       {0, 20}},
      {"gelu", {1, 0, 1}, [&in] { ops::activate(in.x, Activation::kGelu); }, {1, 26}},
      {"gelu backward",
       {2, 0, 1},
       [&in] { ops::activate_backward(in.y, in.x, Activation::kGelu); },
       {1, 29}},
      {"swiglu", {2, 0, 1}, [&in] { ops::activate(in.pair, Activation::kSwiglu); }, {1, 10}},
      {"softmax", {1, 0, 1}, [&in] { ops::softmax(in.x); }, {1, 3}},
      {"cross-entropy with gradient",
       {1, 0, 1},
       [&in] { ops::cross_entropy(in.x, in.targets, {0.1}, true); },
       {1, 4}},
      {"sum of squares", {1, 0, 0}, [&in] { ops::sum_of_squares(in.x); }, {0, 4}},
      {"adamw", {0, 4, 0}, [&in] { ops::adamw(in.z, in.y, in.first, in.second, {}, true); }},
  };
}

}  // namespace

void run_elementwise(const SuiteOptions& options, const Emit& emit) {
  struct Size {
    std::int64_t rows, width;
  };
  // One batch of the examples at width and hidden width, and one that no cache holds.
  const std::vector<Size> sizes = options.quick
                                      ? std::vector<Size>{{1024, 256}}
                                      : std::vector<Size>{{2048, 256}, {2048, 1024}, {131072, 256}};
  for (const Size& size : sizes) {
    PassInputs in(size.rows, size.width, options.seed);
    std::vector<Pass> passes = norm_passes(in);
    for (Pass& pass : other_passes(in)) passes.push_back(std::move(pass));
    for (const Pass& pass : passes) {
      PassProbe probe(pass.traffic, size.rows * size.width, pass.arithmetic);
      const Measurement m = measure(pass.body, probe, options.measure());
      Record r;
      r.name = fmt::format("elementwise/{} [{}, {}]", pass.name, size.rows, size.width);
      r.seconds = m.seconds;
      r.work = static_cast<double>(size.rows * size.width * pass.traffic.bytes_per_element());
      r.unit = "GB/s";
      r.peak_share = r.rate() / m.peak;
      r.limit = probe.arithmetic_binds() ? "arithmetic" : "memory";
      r.runs = m.runs;
      r.dropped = m.dropped;
      r.series = fmt::format("{} x {}", size.rows, size.width);
      r.category = pass.name;
      emit(r);
    }
  }
}

}  // namespace qkv::inline v0::bench
