#include "autograd/var.h"

#include "base/check.h"
#include "base/memory.h"
#include "ops/norm.h"
#include "ops/quantized.h"

namespace qkv::inline v0 {

Gradient::Gradient(const Shape& shape, DType dtype, bool wanted)
    : state_(std::make_shared<State>()) {
  state_->shape = shape;
  state_->dtype = dtype;
  state_->wanted = wanted;
}

std::pair<Tensor, ops::Into> Gradient::slot() const {
  State& s = *state_;
  if (s.arrived) {
    if (s.shared) {
      s.value = s.value.clone();
      s.shared = false;
    }
    return {s.value, ops::Into::kAdd};
  }
  if (!s.bound) s.value = Tensor::empty(s.shape, s.dtype);
  s.arrived = true;
  return {s.value, ops::Into::kOverwrite};
}

void Gradient::accumulate(const Tensor& gradient, bool shared) const {
  State& s = *state_;
  require<ShapeError>(gradient.shape() == s.shape && gradient.dtype() == s.dtype, "autograd",
                      "expected a gradient of shape {} ({}), got {} ({})", s.shape.str(),
                      dtype_name(s.dtype), gradient.shape().str(), dtype_name(gradient.dtype()));
  if (!s.arrived) {
    if (s.bound) {
      s.value.copy_from(gradient);
    } else {
      s.value = gradient;
      s.shared = shared;
    }
    s.arrived = true;
  } else if (s.shared) {
    s.value = ops::add(s.value, gradient);
    s.shared = false;
  } else {
    ops::add_inplace(s.value, gradient);
  }
}

void Gradient::bind(Tensor buffer) const {
  State& s = *state_;
  require<ShapeError>(buffer.shape() == s.shape && buffer.dtype() == s.dtype, "autograd",
                      "expected a buffer of shape {}, got {}", s.shape.str(), buffer.shape().str());
  if (s.arrived) buffer.copy_from(s.value);
  s.value = std::move(buffer);
  s.bound = true;
  s.shared = false;
}

void Gradient::clear() const {
  State& s = *state_;
  s.arrived = false;
  s.shared = false;
  if (!s.bound) s.value = Tensor();
}

Var::Var(Tensor value, bool requires_grad) : node_(std::make_shared<Node>()) {
  node_->gradient = Gradient(value.shape(), value.dtype(), requires_grad);
  node_->value = std::move(value);
}

void Var::set_value(Tensor value) const {
  keep_packed(false);
  node_->value = std::move(value);
}

void Var::set_stored(std::shared_ptr<const ops::QuantizedWeight> weight) const {
  const Shape shape{weight->rows(), weight->columns()};
  require<ShapeError>(node_->value.shape() == shape, "autograd",
                      "expected a stored weight of shape {}, got {}", node_->value.shape().str(),
                      shape.str());
  set_value(Tensor::wrap(nullptr, shape, node_->value.dtype()));
  set_requires_grad(false);
  node_->stored = std::move(weight);
}

void Var::keep_packed(bool on) const {
  const std::lock_guard lock(node_->mutex);
  node_->keeps_packed = on;
  node_->packed.reset();
}

std::shared_ptr<const ops::PackedWeight> Var::packed() const {
  const Tensor& w = node_->value;
  const std::lock_guard lock(node_->mutex);
  if (!node_->keeps_packed || node_->stored || w.dtype() != DType::kFloat32 || w.rank() != 2)
    return nullptr;
  if (node_->packed == nullptr) node_->packed = std::make_shared<const ops::PackedWeight>(w);
  return node_->packed;
}

void Tape::record(const char* op, const Var& output, Rule rule, const Var& second) {
  entries_.push_back({op, module_, output.gradient(),
                      second.defined() ? second.gradient() : Gradient(), std::move(rule)});
}

void Tape::backward(const Var& output, const Tensor& seed) {
  const MemoryScope scope(MemoryKind::kActivations);
  require<ArgumentError>(output.requires_grad(), "autograd",
                         "expected an output that depends on a tensor with gradients, got one that "
                         "does not; record the forward pass on this tape");
  std::vector<Entry> entries;
  entries.swap(entries_);
  output.gradient().accumulate(seed, /*shared=*/true);
  while (!entries.empty()) {
    Entry entry = std::move(entries.back());
    entries.pop_back();
    if (entry.output.arrived() || entry.second.arrived()) {
      const Tensor dout = entry.output.arrived() ? entry.output.value() : Tensor();
      if (watch_) watch_(entry.op, entry.module, dout.defined() ? dout : entry.second.value());
      entry.rule(dout);
      entry.output.clear();
      if (entry.second.arrived()) entry.second.clear();
    }
  }
}

}  // namespace qkv::inline v0
