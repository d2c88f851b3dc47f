// An encoder block and its gradient check.
//
// L = sum(w * block(x)) for fixed w. The backward pass gives dL/dx and dL/d(every parameter). Each
// is compared with (L(p + e) - L(p - e)) / 2e, which needs no theory at all. In double precision
// both agree to about nine digits.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include <qkv/encoder_block.h>
#include <qkv/layout.h>
#include <qkv/tensor.h>

namespace {

constexpr double kStep = 1e-5;

qkv::Tensor made_up(const qkv::Shape& shape, double phase) {
  qkv::Tensor x = qkv::Tensor::empty(shape, qkv::DType::kFloat64);
  for (std::int64_t i = 0; i < x.numel(); ++i)
    x.data<double>()[i] = std::sin(2.3 * static_cast<double>(i) + phase);
  return x;
}

double loss(qkv::EncoderBlock& block, const qkv::Tensor& x, const qkv::RaggedLayout& layout,
            const qkv::Tensor& w) {
  const qkv::Tensor y = block.forward(x, layout);
  double sum = 0;
  for (std::int64_t i = 0; i < y.numel(); ++i) sum += w.data<double>()[i] * y.data<double>()[i];
  return sum;
}

struct Check {
  std::string name;
  qkv::Tensor values, gradient;
};

// Largest difference over the largest gradient of this tensor, on some 20 of its elements.
template <class Loss>
double worst_difference(const Check& check, const Loss& f) {
  double worst = 0, largest = 1e-3;
  const std::int64_t n = check.values.numel(), stride = std::max<std::int64_t>(1, n / 20);
  for (std::int64_t i = 0; i < n; i += stride) {
    double& value = check.values.data<double>()[i];
    const double before = value;
    value = before + kStep;
    const double above = f();
    value = before - kStep;
    const double below = f();
    value = before;
    const double numeric = (above - below) / (2 * kStep);
    worst = std::max(worst, std::abs(numeric - check.gradient.data<double>()[i]));
    largest = std::max(largest, std::abs(numeric));
  }
  return worst / largest;
}

// Prints one line for each tensor; false if one of them is off.
bool check_block(const char* title, const qkv::EncoderBlockOptions& options) {
  std::printf("%s\n", title);
  qkv::EncoderBlock block(options, /*seed=*/7, qkv::DType::kFloat64);
  const std::vector<std::int64_t> lengths = {4, 1, 6};
  const qkv::RaggedLayout layout = qkv::RaggedLayout::from_lengths(lengths);
  const qkv::Tensor x = made_up({layout.tokens(), options.d_model}, 0.4);
  const qkv::Tensor w = made_up({layout.tokens(), options.d_model}, 1.9);

  block.forward(x, layout);
  std::vector<Check> checks = {{"x", x, block.backward(w)}};
  for (const std::string& name : block.parameter_names())
    checks.push_back({name, block.parameter(name), block.gradient(name).clone()});

  bool good = true;
  for (const Check& check : checks) {
    const double worst = worst_difference(check, [&] { return loss(block, x, layout, w); });
    good &= worst < 1e-6;
    std::printf("  %-28s %-10s %.1e%s\n", check.name.c_str(), check.values.shape().str().c_str(),
                worst, worst < 1e-6 ? "" : "  WRONG");
  }
  return good;
}

}  // namespace

int main() {
  std::printf("difference between the backward pass and finite differences, relative\n\n");
  qkv::EncoderBlockOptions classic;
  classic.d_model = 16;
  classic.num_heads = 4;
  classic.d_ff = 32;
  classic.norm_placement = "post";
  qkv::EncoderBlockOptions modern = classic;
  modern.norm = "rms";
  modern.norm_placement = "pre";
  modern.activation = "swiglu";
  modern.num_kv_heads = 2;
  modern.rope = true;
  modern.bias = false;
  bool good = check_block("post-norm block as in BERT: LayerNorm, GELU", classic);
  good &= check_block("modern block: pre-norm RMSNorm, SwiGLU, rotary positions, grouped heads",
                      modern);
  return good ? 0 : 1;
}
