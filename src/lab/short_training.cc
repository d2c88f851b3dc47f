#include "lab/short_training.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "autograd/functions.h"
#include "base/memory.h"
#include "base/random.h"
#include "ops/optimizer.h"

namespace qkv::inline v0::lab {

namespace {

// AdamW's two averages, beside each parameter.
struct Moments {
  Tensor first, second;
};

double rate_at(const TrainingPlan& plan, std::int64_t step) {
  const double warmup = std::max(1.0, plan.warmup_share * static_cast<double>(plan.steps));
  const auto t = static_cast<double>(step);
  if (t <= warmup) return plan.learning_rate * t / warmup;
  const double share = (t - warmup) / std::max(1.0, static_cast<double>(plan.steps) - warmup);
  return plan.learning_rate * 0.5 * (1 + std::cos(std::numbers::pi * share));
}

void update(nn::Module& module, std::vector<Moments>& moments, const TrainingPlan& plan,
            std::int64_t step, std::int64_t counted) {
  module.settle_gradients();
  double squares = 0;
  for (const nn::ParameterGroup& group : module.groups())
    squares += ops::sum_of_squares(group.gradients);
  ops::AdamWStep options;
  options.learning_rate = rate_at(plan, step);
  options.t = step;
  options.gradient_scale = 1 / static_cast<double>(counted);
  const double norm = std::sqrt(squares) * options.gradient_scale;
  if (norm > plan.clip_norm) options.gradient_scale *= plan.clip_norm / norm;
  std::size_t i = 0;
  module.for_each([&](const nn::Parameter& p) {
    Moments& m = moments[i++];
    if (!p.var.has_grad()) return;
    options.weight_decay = p.decay ? plan.weight_decay : 0;
    ops::adamw(p.var.value(), p.var.grad(), m.first, m.second, options, false);
  });
  module.bump_version();
}

}  // namespace

double train_shortly(nn::Module& module, const std::vector<Sample>& samples, const LogitsOf& logits,
                     const TrainingPlan& plan) {
  module.enable_gradients();
  std::vector<Moments> moments;
  {
    const MemoryScope memory(MemoryKind::kOptimizer);
    module.for_each([&](const nn::Parameter& p) {
      moments.push_back(
          {Tensor::zeros(p.var.value().shape()), Tensor::zeros(p.var.value().shape())});
    });
  }
  std::vector<std::size_t> order(samples.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::size_t next = order.size();
  std::uint64_t epoch = 0;
  double late_loss = 0;
  std::int64_t late_steps = 0;
  for (std::int64_t step = 1; step <= plan.steps; ++step) {
    std::vector<const Sample*> batch;
    std::vector<std::int32_t> targets;
    while (static_cast<std::int64_t>(batch.size()) < plan.texts) {
      if (next == order.size()) {
        Random(plan.seed, ++epoch).shuffle(order.begin(), order.end());
        next = 0;
      }
      const Sample& sample = samples[order[next++]];
      batch.push_back(&sample);
      targets.push_back(sample.label);
    }
    Tape tape;
    Context context;
    context.tape = &tape;
    context.training = true;
    context.seed = plan.seed;
    context.step = static_cast<std::uint32_t>(step);
    module.clear_gradients();
    const Var y = logits(context, batch);
    const autograd::Loss loss =
        autograd::cross_entropy(context, y, targets, {plan.label_smoothing, -100});
    const Tensor seed = Tensor::empty({1});
    seed.fill(1);
    tape.backward(loss.sum, seed);
    update(module, moments, plan, step, loss.counted);
    if (step > plan.steps - std::max<std::int64_t>(1, plan.steps / 10)) {
      late_loss += loss.value / static_cast<double>(loss.counted);
      ++late_steps;
    }
  }
  return late_loss / static_cast<double>(late_steps);
}

}  // namespace qkv::inline v0::lab
