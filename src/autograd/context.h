// What a forward pass needs besides its input. One per caller and pass; not shared between threads.
#pragma once

#include <cstdint>
#include <string>

#include "qkv/layout.h"
#include "qkv/random_key.h"

#include "autograd/var.h"

namespace qkv::inline v0 {

namespace nn {
class KvCache;
}

// Sees every attention layer's weights and every named activation, when set.
class CaptureSink {
 public:
  virtual ~CaptureSink() = default;
  virtual bool wants_attention() const { return false; }
  // weights: ragged, one flat tensor of B blocks [H, N_b, N_b]. Linear attention has none and does
  // not call.
  virtual void attention(const std::string& module, const Tensor& weights) {
    (void)module, (void)weights;
  }
  // value: [T, C], or [B, C] from the pooling on. Valid during the call; clone() what is kept.
  virtual void activation(const std::string& module, const Tensor& value) {
    (void)module, (void)value;
  }
  // What a module computes on the way: "qkv" and "mixed" of attention, "hidden" of the feed-forward
  // layer. Valid during the call.
  virtual void detail(const std::string& module, const char* name, const Tensor& value) {
    (void)module, (void)name, (void)value;
  }
};

struct Context {
  Tape* tape = nullptr;    // null: no gradients are recorded
  bool training = false;   // dropout is on only when true
  std::uint64_t seed = 0;  // of dropout
  std::uint32_t step = 0;  // training step: part of dropout's key
  const RaggedLayout* layout =
      nullptr;  // of the packed tokens; must live until the backward pass has ended
  CaptureSink* capture = nullptr;
  Var attention_bias;  // added to the scores of every attention layer (relative positions), or none
  // Decoding: the layout's sequences extend streams of this cache (nn/kv_cache.h), between its
  // begin() and commit(); positions in the layout go on where the streams end. No gradients.
  nn::KvCache* cache = nullptr;
  std::string module;  // path of the module that runs now, "encoder.layers.0.attention"

  bool recording(const Var& v) const { return tape != nullptr && v.requires_grad(); }
  // Key for dropout number `which` of the running module: a hash of (seed, module path, which), and
  // the step.
  RandomKey random_key(int which) const;
};

// Appends a name to the context's module path while it lives.
class ModuleScope {
 public:
  ModuleScope(Context& context, const std::string& name);
  ~ModuleScope();
  ModuleScope(const ModuleScope&) = delete;
  ModuleScope& operator=(const ModuleScope&) = delete;

 private:
  Context& context_;
  std::size_t previous_;
};

}  // namespace qkv::inline v0
