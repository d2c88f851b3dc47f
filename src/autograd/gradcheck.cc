#include "autograd/gradcheck.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/random.h"

namespace qkv::inline v0::autograd {
namespace {

double project(const Tensor& output, const Tensor& weights) {
  const double* y = output.data<double>();
  const double* w = weights.data<double>();
  double sum = 0;
  for (std::int64_t i = 0; i < output.numel(); ++i) sum += w[i] * y[i];
  return sum;
}

Tensor random_projection(const Shape& shape, std::uint64_t seed) {
  Tensor weights = Tensor::empty(shape, DType::kFloat64);
  Random random(seed);
  for (std::int64_t i = 0; i < weights.numel(); ++i)
    weights.data<double>()[i] = 2 * random.uniform() - 1;
  return weights;
}

}  // namespace

GradcheckReport check_gradients(const std::vector<NamedVar>& inputs, FunctionRef<Var(Context&)> f,
                                const GradcheckOptions& options) {
  for (const NamedVar& input : inputs) {
    require<ArgumentError>(
        input.var.requires_grad() && input.var.value().dtype() == DType::kFloat64 &&
            input.var.value().is_contiguous(),
        "gradcheck",
        "expected {} to be a contiguous float64 tensor that requires gradients, got {}", input.name,
        dtype_name(input.var.value().dtype()));
    input.var.clear_grad();
  }
  Tape tape;
  Context context;
  context.tape = &tape;
  const Var output = f(context);
  Tensor weights = random_projection(output.value().shape(), options.seed);
  tape.backward(output, weights);

  const auto loss = [&] {
    Context plain;
    return project(f(plain).value(), weights);
  };
  GradcheckReport report;
  for (const NamedVar& input : inputs) {
    const Tensor gradient = input.var.has_grad()
                                ? input.var.grad()
                                : Tensor::zeros(input.var.value().shape(), DType::kFloat64);
    double* x = input.var.value().data<double>();
    const std::int64_t n = gradient.numel();
    const std::int64_t count = std::min(n, options.max_per_tensor);
    double largest = 0, worst = -1;
    std::string where;
    for (std::int64_t c = 0; c < count; ++c) {
      const std::int64_t i = c * n / count;
      const double kept = x[i];
      x[i] = kept + options.step;
      const double above = loss();
      x[i] = kept - options.step;
      const double below = loss();
      x[i] = kept;
      const double numeric = (above - below) / (2 * options.step);
      const double difference = std::abs(gradient.data<double>()[i] - numeric);
      largest = std::max(largest, std::abs(numeric));
      if (!(difference <= worst)) {
        worst = difference;
        where = fmt::format("{}[{}]: expected {}, got {}", input.name, i, numeric,
                            gradient.data<double>()[i]);
      }
    }
    report.checked += count;
    const double relative =
        worst / std::max(largest, 1e-3);  // below 1e-3 the differences' own rounding dominates
    if (count > 0 && !(relative <= report.worst)) {
      report.worst = relative;
      report.where = where;
    }
  }
  return report;
}

}  // namespace qkv::inline v0::autograd
