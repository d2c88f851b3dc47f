#include "train/optimizer.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/memory.h"
#include "ops/optimizer.h"

namespace qkv::inline v0::train {
namespace {

bool moves(const nn::Parameter& parameter) {
  return parameter.trainable && parameter.var.has_grad();
}

bool is_head(const nn::Parameter& parameter) { return parameter.name.starts_with("classifier."); }

// End of parameter i in the flat buffers, its padding included.
std::int64_t end_of(const nn::ParameterGroup& group, std::size_t i) {
  return i + 1 < group.offsets.size() ? group.offsets[i + 1] : group.values.numel();
}

double max_abs(const Tensor& x) {
  double out = 0;
  const float* data = x.data<float>();
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    if (std::isnan(data[i])) return data[i];
    out = std::max(out, std::abs(static_cast<double>(data[i])));
  }
  return out;
}

}  // namespace

Optimizer::Optimizer(nn::Module& module, const OptimizerOptions& options)
    : module_(module), options_(options) {
  for (const nn::ParameterGroup& group : module.groups()) {
    states_.push_back({Tensor(), Tensor(), std::vector<std::int64_t>(group.parameters.size(), 0)});
  }
}

std::vector<Optimizer::Run> Optimizer::runs(bool merge_all) const {
  std::vector<Run> out;
  for (std::size_t g = 0; g < module_.groups().size(); ++g) {
    const nn::ParameterGroup& group = module_.groups()[g];
    for (std::size_t i = 0; i < group.parameters.size(); ++i) {
      const nn::Parameter& parameter = group.parameters[i];
      if (!moves(parameter)) continue;
      const Run run{g,
                    group.offsets[i],
                    end_of(group, i) - group.offsets[i],
                    parameter.decay,
                    is_head(parameter),
                    states_[g].updates[i]};
      const bool joins =
          !out.empty() && out.back().group == g &&
          out.back().begin + out.back().length == run.begin &&
          (merge_all || (out.back().decay == run.decay && out.back().head == run.head &&
                         out.back().updates == run.updates));
      if (joins) {
        out.back().length += run.length;
      } else {
        out.push_back(run);
      }
    }
  }
  return out;
}

GradientNorms Optimizer::gradient_norms(double scale, ClipNorm type) const {
  GradientNorms out;
  out.by_group.assign(module_.groups().size(), 0);
  double squares = 0, largest = 0;
  for (const Run& run : runs(true)) {
    const Tensor gradient = module_.groups()[run.group].gradients.narrow(0, run.begin, run.length);
    const double sum = ops::sum_of_squares(gradient);
    out.by_group[run.group] += sum;
    squares += sum;
    if (type == ClipNorm::kMax) {
      const double m = max_abs(gradient);
      largest = std::isnan(m) || m > largest ? m : largest;
    }
  }
  for (double& norm : out.by_group) norm = std::sqrt(norm) * std::abs(scale);
  const bool finite = std::isfinite(squares);
  out.norm = (type == ClipNorm::kMax && finite ? largest : std::sqrt(squares)) * std::abs(scale);
  return out;
}

void Optimizer::make_buffers(std::size_t group) {
  const MemoryScope scope(MemoryKind::kOptimizer);
  GroupState& state = states_[group];
  const Shape shape = module_.groups()[group].values.shape();
  if (!state.first.defined()) state.first = Tensor::zeros(shape);
  if (options_.kind == OptimizerKind::kAdamW && !state.second.defined())
    state.second = Tensor::zeros(shape);
}

void Optimizer::step(double learning_rate, double gradient_scale) {
  for (const Run& run : runs(false)) {
    nn::ParameterGroup& group = module_.groups()[run.group];
    const bool plain_sgd = options_.kind == OptimizerKind::kSgd && options_.momentum == 0;
    if (!plain_sgd) make_buffers(run.group);
    const GroupState& state = states_[run.group];
    const Tensor theta = group.values.narrow(0, run.begin, run.length);
    const Tensor gradient = group.gradients.narrow(0, run.begin, run.length);
    const double decay = run.decay ? options_.weight_decay : 0;
    const double rate = run.head ? learning_rate * options_.head_rate : learning_rate;
    if (options_.kind == OptimizerKind::kAdamW) {
      const ops::AdamWStep step{.learning_rate = rate,
                                .beta1 = options_.beta1,
                                .beta2 = options_.beta2,
                                .eps = options_.eps,
                                .weight_decay = decay,
                                .gradient_scale = gradient_scale,
                                .t = run.updates + 1};
      ops::adamw(theta, gradient, state.first.narrow(0, run.begin, run.length),
                 state.second.narrow(0, run.begin, run.length), step, false);
    } else {
      const Tensor momentum = plain_sgd ? Tensor() : state.first.narrow(0, run.begin, run.length);
      ops::sgd(theta, gradient, momentum, rate, options_.momentum, decay, gradient_scale);
    }
  }
  for (std::size_t g = 0; g < states_.size(); ++g) {
    const nn::ParameterGroup& group = module_.groups()[g];
    for (std::size_t i = 0; i < group.parameters.size(); ++i)
      states_[g].updates[i] += moves(group.parameters[i]);
  }
  module_.bump_version();
}

std::vector<std::pair<std::string, Tensor>> Optimizer::state() const {
  std::vector<std::pair<std::string, Tensor>> out;
  const bool adam = options_.kind == OptimizerKind::kAdamW;
  for (std::size_t g = 0; g < states_.size(); ++g) {
    const nn::ParameterGroup& group = module_.groups()[g];
    for (std::size_t i = 0; i < group.parameters.size(); ++i) {
      if (states_[g].updates[i] == 0) continue;
      const nn::Parameter& parameter = group.parameters[i];
      const Shape shape = parameter.var.value().shape();
      const auto view = [&](const Tensor& flat) {
        return flat.narrow(0, group.offsets[i], shape.numel()).reshape(shape);
      };
      if (states_[g].first.defined()) {
        out.emplace_back((adam ? "exp_avg." : "momentum.") + parameter.name,
                         view(states_[g].first));
      }
      if (states_[g].second.defined())
        out.emplace_back("exp_avg_sq." + parameter.name, view(states_[g].second));
    }
  }
  return out;
}

std::map<std::string, std::int64_t> Optimizer::updates() const {
  std::map<std::string, std::int64_t> out;
  for (std::size_t g = 0; g < states_.size(); ++g) {
    const nn::ParameterGroup& group = module_.groups()[g];
    for (std::size_t i = 0; i < group.parameters.size(); ++i) {
      if (states_[g].updates[i] > 0) out[group.parameters[i].name] = states_[g].updates[i];
    }
  }
  return out;
}

void Optimizer::load_state(const std::map<std::string, Tensor>& state,
                           const std::map<std::string, std::int64_t>& updates) {
  std::size_t used = 0;
  for (std::size_t g = 0; g < states_.size(); ++g) {
    const nn::ParameterGroup& group = module_.groups()[g];
    for (std::size_t i = 0; i < group.parameters.size(); ++i) {
      const auto found = updates.find(group.parameters[i].name);
      states_[g].updates[i] = found == updates.end() ? 0 : found->second;
      used += found != updates.end();
      if (found != updates.end() &&
          (options_.kind == OptimizerKind::kAdamW || options_.momentum != 0))
        make_buffers(g);
    }
  }
  require<ModelError>(used == updates.size(), "optimizer",
                      "expected the state of this model's parameters, got {} that "
                      "it does not have",
                      updates.size() - used);
  for (const auto& [name, mine] : this->state()) {
    const auto found = state.find(name);
    require<ModelError>(found != state.end() && found->second.shape() == mine.shape() &&
                            found->second.dtype() == mine.dtype(),
                        "optimizer", "expected {} with shape {} in the saved state", name,
                        mine.shape().str());
    mine.copy_from(found->second);
  }
}

double clip_scale(double norm, double limit) {
  return limit > 0 && norm > limit ? limit / norm : 1;
}

bool matches_pattern(const std::string& text, const std::string& pattern) {
  std::size_t t = 0, p = 0, star = std::string::npos, mark = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      mark = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p;
      ++t;
    } else if (star != std::string::npos) {
      p = star + 1;
      t = ++mark;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

void choose_trainable(nn::Module& module, const std::vector<std::string>& train,
                      const std::vector<std::string>& freeze) {
  const auto any = [](const std::vector<std::string>& patterns, const std::string& name) {
    return std::any_of(patterns.begin(), patterns.end(),
                       [&](const auto& p) { return matches_pattern(name, p); });
  };
  for (const auto* patterns : {&train, &freeze}) {
    for (const std::string& pattern : *patterns) {
      bool found = false;
      module.for_each([&](const nn::Parameter& parameter) {
        found |= matches_pattern(parameter.name, pattern);
      });
      require<ConfigError>(found, "config",
                           "train.{}: expected a pattern that some parameter matches, got '{}'; "
                           "qkv inspect MODEL --stats lists the names",
                           patterns == &train ? "train" : "freeze", pattern);
    }
  }
  std::int64_t count = 0;
  module.for_each([&](nn::Parameter& parameter) {
    const bool wanted = train.empty() || any(train, parameter.name);
    module.set_trainable(parameter, wanted && !any(freeze, parameter.name));
    count += parameter.trainable;
  });
  require<ConfigError>(
      count > 0, "config",
      "expected something to train, but train.freeze and train.train leave nothing");
}

}  // namespace qkv::inline v0::train
