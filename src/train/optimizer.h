// Optimisers over the flat buffers of a module's parameter groups.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "nn/module.h"
#include "train/config.h"

namespace qkv::inline v0::train {

struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::kAdamW;
  double weight_decay =
      0.01;  // of parameters with `decay`: norms, biases and embeddings are exempt
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double momentum = 0;   // kSgd
  double head_rate = 1;  // times the learning rate, for parameters of the classifier's head
};

struct GradientNorms {
  double norm = 0;               // over all parameters, in double
  std::vector<double> by_group;  // in the order of Module::groups(); always the L2 norm
};

// Holds AdamW's moments or SGD's momentum, one flat buffer per group, made when the first gradient
// arrives. Not thread-safe. Parameters that are frozen or got no gradient are neither read nor
// moved, and their state does not age.
class Optimizer {
 public:
  Optimizer(nn::Module& module, const OptimizerOptions& options);

  // Norm of scale * gradient, over trainable parameters with a gradient.
  GradientNorms gradient_norms(double scale, ClipNorm type) const;

  // One update with gradient_scale * gradient, and the module's version moves on.
  void step(double learning_rate, double gradient_scale);

  // State by name: "exp_avg.NAME", "exp_avg_sq.NAME" (or "momentum.NAME"), views of the buffers,
  // for parameters that have one, and the number of updates of each.
  std::vector<std::pair<std::string, Tensor>> state() const;
  std::map<std::string, std::int64_t> updates() const;
  // ModelError if a name or shape does not fit.
  void load_state(const std::map<std::string, Tensor>& state,
                  const std::map<std::string, std::int64_t>& updates);

 private:
  struct GroupState {
    Tensor first, second;               // [n], as the group's values; undefined until needed
    std::vector<std::int64_t> updates;  // per parameter
  };
  // Neighbouring parameters that are treated alike, as one range of the flat buffers.
  struct Run {
    std::size_t group = 0;
    std::int64_t begin = 0, length = 0;
    bool decay = false, head = false;
    std::int64_t updates = 0;
  };
  std::vector<Run> runs(bool merge_all) const;
  void make_buffers(std::size_t group);

  nn::Module& module_;
  OptimizerOptions options_;
  std::vector<GroupState> states_;
};

// What to multiply a gradient of this norm by so that it is at most `limit` (0: no limit); never
// more than 1.
double clip_scale(double norm, double limit);

// Marks the parameters that train: those that match `train` (all, if empty) and not `freeze`.
// ConfigError for a pattern that matches nothing, or if nothing is left.
void choose_trainable(nn::Module& module, const std::vector<std::string>& train,
                      const std::vector<std::string>& freeze);
// '*' stands for any text, '?' for one byte.
bool matches_pattern(const std::string& text, const std::string& pattern);

}  // namespace qkv::inline v0::train
