#include "ops/activation.h"

#include "ops/common.h"

namespace qkv::inline v0::ops {
namespace {

struct Name {
  const char* name;
  Activation activation;
};
// The first name of each is its own; the others are those of Hugging Face's configurations.
constexpr Name kNames[] = {{"none", Activation::kNone},
                           {"relu", Activation::kRelu},
                           {"gelu", Activation::kGelu},
                           {"gelu_tanh", Activation::kGeluTanh},
                           {"silu", Activation::kSilu},
                           {"swiglu", Activation::kSwiglu},
                           {"geglu", Activation::kGeglu},
                           {"tanh", Activation::kTanh},
                           {"geglu_tanh", Activation::kGegluTanh},
                           {"gelu_new", Activation::kGeluTanh},
                           {"gelu_fast", Activation::kGeluTanh},
                           {"gelu_pytorch_tanh", Activation::kGeluTanh},
                           {"swish", Activation::kSilu}};

std::int64_t width_of(const Tensor& x, Activation activation, const char* where) {
  require<ShapeError>(!is_gated(activation) || x.dim(1) % 2 == 0, where,
                      "expected an even width for {}, got {}", activation_name(activation),
                      x.dim(1));
  return is_gated(activation) ? x.dim(1) / 2 : x.dim(1);
}

}  // namespace

const char* activation_name(Activation activation) {
  for (const Name& n : kNames)
    if (n.activation == activation) return n.name;
  fail<ArgumentError>("activation", "expected a known activation, got number {}",
                      static_cast<int>(activation));
}

Activation parse_activation(std::string_view name) {
  std::string known;
  for (const Name& n : kNames) {
    if (n.name == name) return n.activation;
    known += known.empty() ? n.name : std::string(", ") + n.name;
  }
  fail<ConfigError>("activation", "expected one of {}, got '{}'", known, name);
}

Tensor activate(const Tensor& x, Activation activation) {
  check_matrix(x, "activate", "x");
  const std::int64_t rows = x.dim(0), width = width_of(x, activation, "activate");
  Tensor y = Tensor::empty({rows, width}, x.dtype());
  dispatch_floating(x.dtype(), "activate", [&]<class T>(T) {
    const auto& kernels = kernels::activation_kernels<T>();
    parallel_chunks(rows, kChunkRows, [&](std::int64_t begin, std::int64_t end) {
      kernels.forward({.kind = activation,
                       .rows = end - begin,
                       .width = width,
                       .in = x.data<T>() + begin * x.dim(1),
                       .in_stride = x.dim(1),
                       .y = y.data<T>() + begin * width,
                       .y_stride = width});
    });
  });
  return y;
}

Tensor activate_backward(const Tensor& dy, const Tensor& x, Activation activation) {
  check_matrix(x, "activate_backward", "x");
  const std::int64_t rows = x.dim(0), width = width_of(x, activation, "activate_backward");
  check_like(dy, {rows, width}, x.dtype(), "activate_backward", "dy");
  Tensor dx = Tensor::empty(x.shape(), x.dtype());
  dispatch_floating(x.dtype(), "activate_backward", [&]<class T>(T) {
    const auto& kernels = kernels::activation_kernels<T>();
    parallel_chunks(rows, kChunkRows, [&](std::int64_t begin, std::int64_t end) {
      kernels.backward({.kind = activation,
                        .rows = end - begin,
                        .width = width,
                        .dy = dy.data<T>() + begin * width,
                        .dy_stride = width,
                        .pre = x.data<T>() + begin * x.dim(1),
                        .pre_stride = x.dim(1),
                        .dpre = dx.data<T>() + begin * x.dim(1),
                        .dbias = nullptr});
    });
  });
  return dx;
}

}  // namespace qkv::inline v0::ops
