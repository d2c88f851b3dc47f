// Values with gradients, and the tape that fills them in.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "qkv/tensor.h"

#include "ops/linear.h"

namespace qkv::inline v0::ops {
class QuantizedWeight;
}

namespace qkv::inline v0 {

// Handle to a gradient. Kept apart from the value, so that a backward rule which needs no value
// does not keep it alive. Copies share the gradient. Not thread-safe.
class Gradient {
 public:
  Gradient() = default;
  Gradient(const Shape& shape, DType dtype, bool wanted);
  bool wanted() const { return state_ && state_->wanted; }
  bool arrived() const { return state_ && state_->arrived; }
  const Tensor& value() const { return state_->value; }  // undefined until something arrives
  // True if other gradients share the memory: it must not be written to.
  bool shared() const { return state_->shared; }

  // Where a backward rule should write, and how: kOverwrite the first time (contents unspecified),
  // kAdd afterwards. Counts as arrived from then on.
  std::pair<Tensor, ops::Into> slot() const;
  // Adds `gradient`, or takes it over if it is the first. shared: the caller keeps using its memory
  // (read only).
  void accumulate(const Tensor& gradient, bool shared = false) const;
  void bind(Tensor buffer) const;  // the gradient lives there from now on
  void clear() const;              // nothing has arrived; memory that is not bound is freed
  void set_wanted(bool wanted) const { state_->wanted = wanted; }

 private:
  struct State {
    Tensor value;
    Shape shape;
    DType dtype = DType::kFloat32;
    bool wanted = false, arrived = false, bound = false, shared = false;
  };
  std::shared_ptr<State> state_;
};

// Handle to a value and, if it takes part in differentiation, its gradient. Copies share both.
class Var {
 public:
  Var() = default;
  explicit Var(Tensor value, bool requires_grad = false);
  bool defined() const { return node_ != nullptr; }
  bool requires_grad() const { return node_ && node_->gradient.wanted(); }
  void set_requires_grad(bool on) const { node_->gradient.set_wanted(on); }
  const Tensor& value() const { return node_->value; }
  const Gradient& gradient() const { return node_->gradient; }
  const Tensor& grad() const {
    return node_->gradient.value();
  }  // undefined until something arrives
  bool has_grad() const { return node_ && node_->gradient.arrived(); }
  void bind_grad(Tensor buffer) const { node_->gradient.bind(std::move(buffer)); }
  void clear_grad() const { node_->gradient.clear(); }
  // Another tensor of the same shape and dtype in its place (parameters move into flat buffers).
  void set_value(Tensor value) const;
  // keep_packed(true): the value stays as it is until keep_packed(false), so its packed form may be
  // kept. packed() makes that at the first call; null where the value may change or is no fp32
  // matrix. packed() is thread-safe.
  void keep_packed(bool on) const;
  std::shared_ptr<const ops::PackedWeight> packed() const;
  // A weight [N, K] that stays in its stored type: products and embeddings take it as it is, and
  // value() then has the shape alone, without memory. No gradient. Null: value() is the weight.
  void set_stored(std::shared_ptr<const ops::QuantizedWeight> weight) const;
  const std::shared_ptr<const ops::QuantizedWeight>& stored() const { return node_->stored; }

 private:
  struct Node {
    Tensor value;
    Gradient gradient;
    std::mutex mutex;  // of what follows
    bool keeps_packed = false;
    std::shared_ptr<const ops::PackedWeight> packed;
    std::shared_ptr<const ops::QuantizedWeight> stored;
  };
  std::shared_ptr<Node> node_;
};

// Records one backward rule per op, in order; backward() calls them in reverse and frees each as it
// goes, so that the memory of activations falls during the backward pass.
class Tape {
 public:
  using Rule = std::function<void(const Tensor& dout)>;
  // `output` is the op's result. The rule is skipped if no gradient arrived there (nor at `second`,
  // for an op with two results; then dout may be undefined). `op` and the running module name it in
  // messages.
  void record(const char* op, const Var& output, Rule rule, const Var& second = Var());
  // Starts with d(output) = seed (of the output's shape) and runs every rule once. The tape is
  // empty afterwards, also after an exception. Gradients of intermediate results are freed; those
  // of leaves stay.
  void backward(const Var& output, const Tensor& seed);
  void clear() { entries_.clear(); }
  std::size_t size() const { return entries_.size(); }
  void set_module(const std::string& path) { module_ = path; }
  const std::string& module() const { return module_; }
  // Called before each rule with (op, module, the gradient of its output): the watch for non-finite
  // values.
  using Watch =
      std::function<void(const char* op, const std::string& module, const Tensor& gradient)>;
  void set_watch(Watch watch) { watch_ = std::move(watch); }

 private:
  struct Entry {
    const char* op;
    std::string module;
    Gradient output, second;
    Rule rule;
  };
  std::vector<Entry> entries_;
  std::string module_;
  Watch watch_;
};

}  // namespace qkv::inline v0
