// Values with gradients, and the tape that fills them in.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ops/linear.h"
#include "qkv/tensor.h"

namespace qkv::inline v0 {

// Handle to a value and, if it takes part in differentiation, its gradient. Copies share both.
class Var {
 public:
  Var() = default;
  explicit Var(Tensor value, bool requires_grad = false);
  bool defined() const { return node_ != nullptr; }
  bool requires_grad() const { return node_ && node_->requires_grad; }
  const Tensor& value() const { return node_->value; }
  const Tensor& grad() const { return node_->grad; }  // undefined until something arrives
  bool has_grad() const { return node_ && node_->has_grad; }
  // Where a backward rule should write: allocates on first use; kOverwrite the first time, kAdd afterwards.
  // Parameters bind their gradient to a flat buffer by bind_grad.
  std::pair<Tensor, ops::Into> grad_slot() const;
  void accumulate(const Tensor& gradient) const;  // takes it over if it is the first, else adds
  void bind_grad(Tensor buffer) const;            // grad lives there from now on; has_grad stays as it is
  void clear_grad() const;                        // has_grad = false (a bound buffer stays bound)
  void mark_grad() const { node_->has_grad = true; }
  void set_value(Tensor value) const { node_->value = std::move(value); }
  void release_value() const { node_->value = Tensor(); }
  const void* id() const { return node_.get(); }

 private:
  struct Node {
    Tensor value, grad;
    bool requires_grad = false, has_grad = false, bound = false;
  };
  std::shared_ptr<Node> node_;
};

// Records one backward rule per op, in order; backward() calls them in reverse and frees each as it goes.
class Tape {
 public:
  // `output` is the op's result: its rule is skipped if no gradient arrived there. `op` and `module` name it in messages.
  void record(const char* op, Var output, std::function<void(const Tensor& dout)> rule);
  // Starts with d(output) = seed (a tensor of the output's shape) and runs every rule once. The tape is empty afterwards.
  void backward(const Var& output, const Tensor& seed);
  void clear() { entries_.clear(); }
  std::size_t size() const { return entries_.size(); }
  void set_module(std::string path) { module_ = std::move(path); }
  const std::string& module() const { return module_; }
  // Called after each rule with (op, module, the output gradient): the watch for non-finite values.
  using Watch = std::function<void(const char* op, const std::string& module, const Tensor& gradient)>;
  void set_watch(Watch watch) { watch_ = std::move(watch); }

 private:
  struct Entry {
    const char* op;
    std::string module;
    Var output;
    std::function<void(const Tensor&)> rule;
  };
  std::vector<Entry> entries_;
  std::string module_;
  Watch watch_;
};

}  // namespace qkv::inline v0
