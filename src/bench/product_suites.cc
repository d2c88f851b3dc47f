// Matrix products: the kernel on one thread, and linear layers on all.
#include <cstdint>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/random.h"
#include "bench/inputs.h"
#include "bench/suites.h"
#include "kernels/packed_matrix.h"
#include "ops/linear.h"

namespace qkv::inline v0::bench {
namespace {

Record product_record(std::string name, double operations, const Measurement& m) {
  Record r;
  r.name = std::move(name);
  r.seconds = m.seconds;
  r.work = operations;
  r.unit = "GFLOP/s";
  r.peak_share = r.rate() / m.peak;
  r.runs = m.runs;
  r.dropped = m.dropped;
  return r;
}

struct LinearShape {
  std::int64_t in, out;
};
// The projections of a model of width 256, and one of BERT-base.
constexpr LinearShape kLinear[] = {{256, 768}, {256, 1024}, {1024, 256}, {768, 3072}};

}  // namespace

Tensor random_tensor(const Shape& shape, std::uint64_t seed, std::uint64_t stream) {
  Tensor t = Tensor::empty(shape);
  Random random(seed, stream);
  float* values = t.data<float>();
  for (std::int64_t i = 0; i < t.numel(); ++i) values[i] = static_cast<float>(random.normal());
  return t;
}

void run_gemm(const SuiteOptions& options, const Emit& emit) {
  MultiplyAddProbe probe(1);
  for (std::int64_t n = 128; n <= (options.quick ? 256 : 1024); n *= 2) {
    const Tensor a = random_tensor({n, n}, options.seed, 1),
                 b = random_tensor({n, n}, options.seed, 2);
    const Tensor c = Tensor::zeros({n, n});
    const auto pack = [&] { return kernels::PackedMatrix<float>(b.data<float>(), n, true, n, n); };
    const kernels::PackedMatrix<float> packed = pack();
    const auto add = [&](const char* kind, const Measurement& m) {
      Record r = product_record(fmt::format("gemm/{} {}", kind, n), 2.0 * n * n * n, m);
      r.series = kind;
      r.x = static_cast<double>(n);
      emit(r);
    };
    const auto multiply = [&](const kernels::PackedMatrix<float>& right) {
      right.multiply(n, a.data<float>(), n, nullptr, c.data<float>());
    };
    add("A B^T", measure([&] { multiply(packed); }, probe, options.measure()));
    add("A B^T with packing", measure([&] { multiply(pack()); }, probe, options.measure()));
  }
}

void run_linear(const SuiteOptions& options, const Emit& emit) {
  MultiplyAddProbe probe;
  for (const auto& shape : kLinear) {
    const std::int64_t in = shape.in, out = shape.out;
    const Tensor w = random_tensor({out, in}, options.seed, 1),
                 bias = random_tensor({out}, options.seed, 2);
    const ops::PackedWeight packed(w);
    const Tensor dw = Tensor::zeros({out, in}), dbias = Tensor::zeros({out});
    for (std::int64_t rows = 256; rows <= (options.quick ? 256 : 4096); rows *= 2) {
      const Tensor x = random_tensor({rows, in}, options.seed, 3),
                   dy = random_tensor({rows, out}, options.seed, 4);
      const double operations = 2.0 * static_cast<double>(rows * in * out);
      const auto add = [&](const char* pass, double products, const Measurement& m) {
        Record r = product_record(fmt::format("linear/{} M={} K={} N={}", pass, rows, in, out),
                                  products * operations, m);
        r.series = fmt::format("{} {} to {}", pass, in, out);
        r.x = static_cast<double>(rows);
        emit(r);
      };
      add("forward", 1, measure([&] { ops::linear(x, w, bias); }, probe, options.measure()));
      add("forward, packed", 1,
          measure([&] { ops::linear(x, packed, bias); }, probe, options.measure()));
      const auto backward = [&] {
        ops::linear_backward(dy, x, w, ops::Activation::kNone, Tensor(), true,
                             {dw, dbias, ops::Into::kOverwrite});
      };
      add("backward", 2, measure(backward, probe, options.measure()));
    }
  }
}

}  // namespace qkv::inline v0::bench
