// One encoder block on its own, with its backward pass: the same block that the models are built
// from.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "qkv/layout.h"
#include "qkv/tensor.h"

namespace qkv::inline v0 {

// Names as in the [model] table of a training configuration (docs/configuration.md).
struct EncoderBlockOptions {
  std::int64_t d_model = 256, num_heads = 8;
  std::int64_t num_kv_heads = 0;       // 0: num_heads
  std::int64_t d_ff = 1024;            // 0: attention only
  std::string norm = "layer";          // "layer", "rms", "none"
  std::string norm_placement = "pre";  // "pre", "post", "sandwich"
  std::string activation = "gelu";     // "gelu", "gelu_tanh", "relu", "silu", "swiglu", "geglu",
                                       // "geglu_tanh"
  std::string attention = "auto";      // "auto", "naive", "flash", "window", "linear"
  std::int64_t window = 0;             // of attention = "window"
  bool rope = false;                   // rotary positions
  bool bias = true;
};

// With f one of attention and feed-forward, in this order:
//   pre       x = x + f(norm(x))
//   post      x = norm(x + f(x))
//   sandwich  x = x + norm'(f(norm(x)))
// without dropout. fp32 or fp64. Not thread-safe: one object per caller.
class QKV_API EncoderBlock {
 public:
  // Weights are a pure function of options and seed. ConfigError names what cannot work.
  EncoderBlock(const EncoderBlockOptions& options, std::uint64_t seed,
               DType dtype = DType::kFloat32);
  ~EncoderBlock();
  EncoderBlock(EncoderBlock&&) noexcept;
  EncoderBlock& operator=(EncoderBlock&&) noexcept;

  // x: [T, C], packed sequences of `layout` -> [T, C]. Keeps what backward() needs.
  Tensor forward(const Tensor& x, const RaggedLayout& layout);
  // From the gradient of the last forward()'s output, [T, C], to that of its input, [T, C]. The
  // gradients of the parameters are overwritten. Once for each forward(), else ArgumentError.
  Tensor backward(const Tensor& dy);

  // "attention.qkv.weight" and so on, in a fixed order.
  std::vector<std::string> parameter_names() const;
  // Views of the block's own memory: writing to them changes the block. ArgumentError for an
  // unknown name, and for a gradient before the first backward().
  Tensor parameter(const std::string& name) const;
  Tensor gradient(const std::string& name) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace qkv::inline v0
