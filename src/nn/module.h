// Modules: named parameters, in a tree, over flat buffers.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "autograd/context.h"
#include "autograd/var.h"

namespace qkv::inline v0::nn {

struct Parameter {
  std::string name;          // full path, Hugging Face style: "encoder.layers.0.attention.qkv.weight"
  Var var;
  bool decay = true;         // false: norms, biases, embeddings
  bool trainable = true;
};

// Flat buffers of one unit (a Block, the embeddings, the head): parameters are views into `values`, their gradients views
// into `gradients`. The optimiser keeps its state in the same layout.
struct ParameterGroup {
  std::string name;                 // "encoder.layers.0"
  Tensor values, gradients;         // [n] fp32 (fp64 in gradient checks)
  std::vector<Parameter> parameters;
  std::vector<std::int64_t> offsets;  // of each parameter in the flat buffers, multiples of 16 elements
};

// Root of a model's parameters, in a fixed order.
class Module {
 public:
  // Building: begin_group, then add parameters (fp32 or fp64 values), then finish() lays out the flat buffers.
  void begin_group(std::string name);
  Var add(std::string name, const Tensor& initial, bool decay);
  void finish();

  std::vector<ParameterGroup>& groups() { return groups_; }
  const std::vector<ParameterGroup>& groups() const { return groups_; }
  void for_each(const std::function<void(Parameter&)>& f);
  void for_each(const std::function<void(const Parameter&)>& f) const;
  const Parameter* find(const std::string& name) const;
  std::int64_t num_parameters() const;
  void zero_gradients();  // has_grad false and gradients 0
  std::uint64_t version() const { return version_; }  // bumped by whoever changes weights: invalidates packed copies
  void bump_version() { ++version_; }

 private:
  std::vector<ParameterGroup> groups_;
  std::uint64_t version_ = 0;
};

}  // namespace qkv::inline v0::nn
