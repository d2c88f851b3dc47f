// Modules: named parameters, in groups, over flat buffers.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "autograd/context.h"
#include "autograd/var.h"
#include "nn/init.h"

namespace qkv::inline v0::nn {

struct Parameter {
  std::string name;  // full path, Hugging Face style: "encoder.layers.0.attention.qkv.weight"
  Var var;
  bool decay = true;      // false: norms, biases, embeddings
  bool trainable = true;  // change it by Module::set_trainable
  Init init;
  bool lent = false;  // its value lies elsewhere, read only (Module::lend)
};

// Flat buffers of one unit (a Block, the embeddings, the head): parameters are views into `values`,
// their gradients views into `gradients`. The optimiser keeps its state in the same layout.
struct ParameterGroup {
  std::string name;  // "encoder.layers.0"
  Tensor values;     // [n] fp32 (fp64 in gradient checks); zero between parameters
  Tensor gradients;  // [n], undefined before enable_gradients()
  std::vector<Parameter> parameters;
  // Of each parameter in the flat buffers, multiples of 16 elements; unused where it is lent.
  std::vector<std::int64_t> offsets;
};

// The parameters of a model, in a fixed order. Reading is thread-safe.
class Module {
 public:
  explicit Module(DType dtype = DType::kFloat32) : dtype_(dtype) {}
  Module(Module&&) noexcept = default;
  Module& operator=(Module&&) noexcept = default;

  // Building: begin_group, add its parameters, and so on; finish() lays out the flat buffers
  // (zeros).
  void begin_group(std::string name);
  Var add(std::string name, const Shape& shape, const Init& init, bool decay);
  void finish();
  // Before finish(): the parameter's value is `value`, read only, instead of a part of the flat
  // buffers; it cannot be trained. ShapeError unless shape and dtype fit.
  void lend(const std::string& name, const Tensor& value);
  // The same for a matrix that stays in its stored type (Var::set_stored).
  void lend(const std::string& name, const std::shared_ptr<const ops::QuantizedWeight>& weight);
  // Random values: a pure function of (seed, parameter name).
  void initialise(std::uint64_t seed);

  std::vector<ParameterGroup>& groups() { return groups_; }
  const std::vector<ParameterGroup>& groups() const { return groups_; }
  void for_each(const std::function<void(Parameter&)>& f);
  void for_each(const std::function<void(const Parameter&)>& f) const;
  const Parameter* find(const std::string& name) const;  // null if absent
  std::int64_t num_parameters() const;                   // elements
  DType dtype() const { return dtype_; }

  // A parameter that is not trainable gets no gradient, and backward rules skip the work for it.
  void set_trainable(Parameter& parameter, bool trainable);

  // Training. enable_gradients() makes the flat gradient buffers (once; zeros) and binds the
  // parameters to them. clear_gradients() forgets what arrived without touching memory: the next
  // backward pass overwrites. After it, a parameter whose var.has_grad() is still false got no
  // gradient: its part of the buffer is stale and the optimiser must leave the parameter and its
  // state alone; settle_gradients() sets such parts to zero.
  void enable_gradients();
  void clear_gradients();
  void settle_gradients();
  void zero_gradients();  // clear, and zeros everywhere

  std::uint64_t version() const {
    return version_;
  }  // bumped by whoever changes weights: copies in another form are then dropped
  void bump_version();
  // The weights stay as they are until bump_version(): the linear layers keep them in packed form
  // from their first use on, as much memory again. For inference.
  void keep_packed();

 private:
  std::vector<ParameterGroup> groups_;
  std::uint64_t version_ = 0;
  bool keeps_packed_ = false;
  DType dtype_;
};

// Adds parameters under a path: Builder(module, "encoder").child("layers.0") names
// "encoder.layers.0.NAME".
class Builder {
 public:
  Builder(Module& module, std::string path) : module_(&module), path_(std::move(path)) {}
  Builder child(const std::string& name) const {
    return {*module_, path_.empty() ? name : path_ + "." + name};
  }
  Var add(const std::string& name, const Shape& shape, const Init& init, bool decay) const {
    return module_->add(path_.empty() ? name : path_ + "." + name, shape, init, decay);
  }
  Module& module() const { return *module_; }
  const std::string& path() const { return path_; }

 private:
  Module* module_;
  std::string path_;
};

}  // namespace qkv::inline v0::nn
