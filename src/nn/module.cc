#include "nn/module.h"

#include <cstring>

#include "base/check.h"
#include "base/memory.h"

namespace qkv::inline v0::nn {
namespace {

constexpr std::int64_t kAlignElements = 16;

std::int64_t aligned(std::int64_t offset) {
  return (offset + kAlignElements - 1) / kAlignElements * kAlignElements;
}

Tensor view_of(const Tensor& flat, std::int64_t offset, const Shape& shape) {
  return flat.narrow(0, offset, shape.numel()).reshape(shape);
}

}  // namespace

void Module::begin_group(std::string name) {
  groups_.push_back({});
  groups_.back().name = std::move(name);
}

Var Module::add(std::string name, const Shape& shape, const Init& init, bool decay) {
  require<InternalError>(!groups_.empty() && !groups_.back().values.defined(), "module",
                         "expected begin_group() before parameter {} and finish() after it", name);
  require<InternalError>(find(name) == nullptr, "module", "expected one parameter {}, got two",
                         name);
  ParameterGroup& group = groups_.back();
  // The shape stands in for the value until finish(): no memory behind it.
  Var var(Tensor::wrap(nullptr, shape, dtype_), /*requires_grad=*/true);
  group.parameters.push_back({std::move(name), var, decay, true, init});
  group.offsets.push_back(0);  // finish() lays them out
  return var;
}

void Module::lend(const std::string& name, const Tensor& value) {
  for_each([&](Parameter& parameter) {
    if (parameter.name != name) return;
    require<ShapeError>(value.shape() == parameter.var.value().shape() && value.dtype() == dtype_,
                        "module", "{}: expected {} {}, got {} {}", name, dtype_name(dtype_),
                        parameter.var.value().shape().str(), dtype_name(value.dtype()),
                        value.shape().str());
    parameter.var.set_value(value);
    parameter.lent = true;
    set_trainable(parameter, false);
  });
}

void Module::lend(const std::string& name,
                  const std::shared_ptr<const ops::QuantizedWeight>& weight) {
  for_each([&](Parameter& parameter) {
    if (parameter.name != name) return;
    parameter.var.set_stored(weight);
    parameter.lent = true;
    set_trainable(parameter, false);
  });
}

void Module::finish() {
  const MemoryScope scope(MemoryKind::kWeights);
  for (ParameterGroup& group : groups_) {
    std::int64_t size = 0;
    for (std::size_t i = 0; i < group.parameters.size(); ++i) {
      if (group.parameters[i].lent) continue;
      group.offsets[i] = aligned(size);
      size = group.offsets[i] + group.parameters[i].var.value().numel();
    }
    group.values = Tensor::zeros({size}, dtype_);
    for (std::size_t i = 0; i < group.parameters.size(); ++i) {
      if (group.parameters[i].lent) continue;
      const Var& var = group.parameters[i].var;
      var.set_value(view_of(group.values, group.offsets[i], var.value().shape()));
    }
  }
}

void Module::initialise(std::uint64_t seed) {
  for_each([&](Parameter& p) { nn::initialise(p.var.value(), p.init, seed, p.name); });
  bump_version();
}

void Module::bump_version() {
  ++version_;
  if (keeps_packed_) for_each([](Parameter& p) { p.var.keep_packed(false); });
  keeps_packed_ = false;
}

void Module::keep_packed() {
  for_each([](Parameter& p) { p.var.keep_packed(true); });
  keeps_packed_ = true;
}

void Module::for_each(const std::function<void(Parameter&)>& f) {
  for (ParameterGroup& group : groups_) {
    for (Parameter& parameter : group.parameters) f(parameter);
  }
}

void Module::for_each(const std::function<void(const Parameter&)>& f) const {
  for (const ParameterGroup& group : groups_) {
    for (const Parameter& parameter : group.parameters) f(parameter);
  }
}

const Parameter* Module::find(const std::string& name) const {
  for (const ParameterGroup& group : groups_) {
    for (const Parameter& parameter : group.parameters) {
      if (parameter.name == name) return &parameter;
    }
  }
  return nullptr;
}

std::int64_t Module::num_parameters() const {
  std::int64_t n = 0;
  for_each([&](const Parameter& p) { n += p.var.value().numel(); });
  return n;
}

void Module::set_trainable(Parameter& parameter, bool trainable) {
  parameter.trainable = trainable;
  parameter.var.set_requires_grad(trainable);
}

void Module::enable_gradients() {
  const MemoryScope scope(MemoryKind::kGradients);
  for_each([](const Parameter& p) {
    require<ArgumentError>(!p.lent, "module",
                           "expected weights that can be trained, got {} read only from its file; "
                           "load the model for training",
                           p.name);
  });
  for (ParameterGroup& group : groups_) {
    if (group.gradients.defined()) continue;
    group.gradients = Tensor::zeros(group.values.shape(), dtype_);
    for (std::size_t i = 0; i < group.parameters.size(); ++i) {
      const Var& var = group.parameters[i].var;
      var.bind_grad(view_of(group.gradients, group.offsets[i], var.value().shape()));
    }
  }
}

void Module::clear_gradients() {
  for_each([](Parameter& p) { p.var.clear_grad(); });
}

void Module::settle_gradients() {
  enable_gradients();
  for_each([](Parameter& p) {
    if (!p.var.has_grad()) p.var.grad().fill(0);
  });
}

void Module::zero_gradients() {
  clear_gradients();
  settle_gradients();
}

}  // namespace qkv::inline v0::nn
