// Optimisers over a module's groups: the arithmetic, clipping, and what must not move.
#include "train/optimizer.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "qkv/error.h"

#include "ops/embedding.h"

using namespace qkv;
using train::clip_scale;
using train::ClipNorm;
using train::Optimizer;
using train::OptimizerKind;
using train::OptimizerOptions;

namespace {

// Parameters of given values in one group; gradients arrive by give().
struct Parameters {
  nn::Module module;
  Var add(const std::string& name, const Shape& shape, bool decay) {
    if (module.groups().empty()) module.begin_group("group");
    return module.add(name, shape, {}, decay);
  }
  void finish() {
    module.finish();
    module.enable_gradients();
  }
};

void set(const Var& var, const std::vector<float>& values) {
  std::copy(values.begin(), values.end(), var.value().data<float>());
}

void give(const Var& var, const std::vector<float>& gradient) {
  const auto [slot, into] = var.gradient().slot();
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    float& to = slot.data<float>()[i];
    to = into == ops::Into::kAdd ? to + gradient[i] : gradient[i];
  }
}

std::vector<float> values(const Var& var) {
  const float* data = var.value().data<float>();
  return {data, data + var.value().numel()};
}

}  // namespace

TEST(Optimizer, b33_adamw_over_two_steps) {
  Parameters p;
  const Var theta = p.add("w", {1, 1}, true);
  p.finish();
  set(theta, {1});
  Optimizer optimizer(p.module, {.weight_decay = 0.1, .beta1 = 0.9, .beta2 = 0.999, .eps = 0.1});
  for (const double expected : {0.94, 0.8806}) {
    p.module.clear_gradients();
    give(theta, {0.1f});
    optimizer.step(0.1, 1.0);
    EXPECT_NEAR(values(theta)[0], expected, 1e-6);
  }
  EXPECT_EQ(optimizer.updates().at("w"), 2);
}

TEST(Optimizer, the_head_moves_at_its_own_rate) {
  for (const OptimizerKind kind : {OptimizerKind::kSgd, OptimizerKind::kAdamW}) {
    Parameters p;
    const Var body = p.add("encoder.w", {1, 1}, false), head = p.add("classifier.w", {1, 1}, false),
              like = p.add("classifiers.w", {1, 1}, false);
    p.finish();
    for (const Var& var : {body, head, like}) set(var, {1});
    for (const Var& var : {body, head, like}) give(var, {0.5});
    Optimizer(p.module, {.kind = kind, .weight_decay = 0, .head_rate = 10}).step(0.01, 1);
    const float step = 1 - values(body)[0];
    EXPECT_GT(step, 0.004f);
    EXPECT_NEAR(1 - values(head)[0], 10 * step, 1e-6);
    EXPECT_EQ(values(like), values(body));
  }
}

TEST(Optimizer, b34_decay_moves_only_what_it_should) {
  Parameters p;
  const Var with_zero = p.add("a.weight", {2, 1}, true), without = p.add("b.weight", {2, 1}, true),
            frozen = p.add("c.weight", {2, 1}, true), gain = p.add("norm.weight", {2}, false),
            bias = p.add("a.bias", {2}, false), table = p.add("embeddings.weight", {2, 1}, false);
  p.finish();
  const Var all[] = {with_zero, without, frozen, gain, bias, table};
  for (const Var& var : all) set(var, {1, -2});
  train::choose_trainable(p.module, {}, {"c.*"});
  const Tensor sinusoids = ops::sinusoidal_table(4, 4), before = sinusoids.clone();
  Optimizer optimizer(p.module, {.weight_decay = 0.5});
  for (const Var& var : {with_zero, gain, bias, table}) give(var, {0, 0});
  optimizer.step(0.1, 1.0);
  EXPECT_FLOAT_EQ(values(with_zero)[0], 0.95f);
  EXPECT_FLOAT_EQ(values(with_zero)[1], -1.9f);
  for (const Var& var : {without, frozen, gain, bias, table})
    EXPECT_EQ(values(var), (std::vector<float>{1, -2}));
  for (std::int64_t i = 0; i < 16; ++i)
    EXPECT_EQ(sinusoids.data<float>()[i], before.data<float>()[i]);
  // No state was made or aged for what had no gradient.
  const auto updates = optimizer.updates();
  EXPECT_EQ(updates.count("b.weight"), 0u);
  EXPECT_EQ(updates.count("c.weight"), 0u);
  EXPECT_EQ(updates.at("norm.weight"), 1);
}

TEST(Optimizer, b34_a_late_first_gradient_starts_its_own_count) {
  Parameters p;
  const Var early = p.add("early", {1, 1}, false), late = p.add("late", {1, 1}, false);
  p.finish();
  set(early, {1});
  set(late, {1});
  Optimizer optimizer(p.module, {.eps = 0});
  give(early, {1});
  optimizer.step(0.1, 1.0);
  p.module.clear_gradients();
  give(early, {1});
  give(late, {5});
  optimizer.step(0.1, 1.0);
  EXPECT_NEAR(values(late)[0], 0.9, 1e-6);  // bias correction of its own first update
  EXPECT_EQ(optimizer.updates().at("late"), 1);
  EXPECT_EQ(optimizer.updates().at("early"), 2);
}

TEST(Optimizer, b27_micro_batches_are_averaged_over_all_targets) {
  Parameters p;
  const Var w = p.add("w", {1, 1}, true);
  p.finish();
  set(w, {0});
  Optimizer optimizer(p.module, {.kind = OptimizerKind::kSgd, .weight_decay = 0});
  give(w, {3});  // the sum over x = 1, 1, 1
  give(w, {5});  // x = 5 and three ignored targets
  const auto norms = optimizer.gradient_norms(1.0 / 4, ClipNorm::kL2);
  EXPECT_NEAR(norms.norm, 2, 1e-6);
  optimizer.step(1.0, 1.0 / 4);
  EXPECT_NEAR(values(w)[0], -2, 1e-6);  // a mean of means would give -3
}

TEST(Clipping, b31_non_finite_gradients_show_in_the_norm) {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    for (const auto type : {ClipNorm::kL2, ClipNorm::kMax}) {
      Parameters p;
      const Var w = p.add("w", {2}, true);
      p.finish();
      give(w, {bad, 1});
      const Optimizer optimizer(p.module, {});
      EXPECT_FALSE(std::isfinite(optimizer.gradient_norms(1, type).norm));
      EXPECT_EQ(w.grad().data<float>()[1], 1);  // untouched
    }
  }
}

TEST(Clipping, b31_large_finite_gradients_do_not_overflow) {
  Parameters p;
  const Var w = p.add("w", {100}, false);
  p.finish();
  give(w, std::vector<float>(100, 1e20f));
  Optimizer optimizer(p.module, {.kind = OptimizerKind::kSgd, .weight_decay = 0});
  const double norm = optimizer.gradient_norms(1, ClipNorm::kL2).norm;
  EXPECT_NEAR(norm / 1e21, 1, 1e-6);
  optimizer.step(1, clip_scale(norm, 1));
  for (const float x : values(w)) EXPECT_NEAR(x, -0.1, 1e-6);
}

TEST(Clipping, b31_the_largest_entry_as_norm) {
  Parameters p;
  const Var w = p.add("w", {2}, false);
  p.finish();
  give(w, {3, -4});
  Optimizer optimizer(p.module, {.kind = OptimizerKind::kSgd, .weight_decay = 0});
  const double norm = optimizer.gradient_norms(1, ClipNorm::kMax).norm;
  EXPECT_EQ(norm, 4);
  optimizer.step(1, clip_scale(norm, 2));
  EXPECT_EQ(values(w), (std::vector<float>{-1.5f, 2}));
}

TEST(Clipping, b31_small_gradients_are_never_enlarged_and_zero_is_fine) {
  EXPECT_EQ(clip_scale(0.5, 1), 1);
  EXPECT_EQ(clip_scale(0, 1), 1);
  EXPECT_EQ(clip_scale(7, 0), 1);  // off
  Parameters p;
  const Var w = p.add("w", {2}, false);
  p.finish();
  give(w, {0, 0});
  EXPECT_EQ(Optimizer(p.module, {}).gradient_norms(1, ClipNorm::kL2).norm, 0);
}

TEST(Clipping, norms_per_group_add_up_to_the_whole) {
  nn::Module module;
  module.begin_group("one");
  const Var a = module.add("a", {2}, {}, true);
  module.begin_group("two");
  const Var b = module.add("b", {1}, {}, true), frozen = module.add("c", {1}, {}, true);
  module.finish();
  module.enable_gradients();
  give(a, {3, 4});
  give(b, {12});
  const auto norms = Optimizer(module, {}).gradient_norms(0.5, ClipNorm::kL2);
  EXPECT_DOUBLE_EQ(norms.by_group[0], 2.5);
  EXPECT_DOUBLE_EQ(norms.by_group[1], 6);
  EXPECT_DOUBLE_EQ(norms.norm, 6.5);
  EXPECT_FALSE(frozen.has_grad());
}

TEST(Optimizer, state_comes_back_bit_for_bit) {
  const auto run = [](int save_at) {
    Parameters p;
    const Var w = p.add("w", {3, 1}, true), b = p.add("b", {1}, false);
    p.finish();
    set(w, {1, 2, 3});
    set(b, {4});
    std::map<std::string, Tensor> state;
    std::map<std::string, std::int64_t> updates;
    auto optimizer = std::make_unique<Optimizer>(p.module, OptimizerOptions{});
    for (int i = 0; i < 6; ++i) {
      if (i == save_at) {
        for (const auto& [name, tensor] : optimizer->state()) state[name] = tensor.clone();
        updates = optimizer->updates();
        optimizer = std::make_unique<Optimizer>(p.module, OptimizerOptions{});
        optimizer->load_state(state, updates);
      }
      p.module.clear_gradients();
      give(w, {0.1f * static_cast<float>(i), -1, 0.5f});
      give(b, {static_cast<float>(i)});
      optimizer->step(0.01, 0.7);
    }
    auto out = values(w);
    out.push_back(values(b)[0]);
    return out;
  };
  const auto plain = run(-1);
  for (const int at : {1, 3, 5}) EXPECT_EQ(run(at), plain);
}

TEST(Optimizer, foreign_state_is_refused) {
  Parameters p;
  const Var w = p.add("w", {2}, true);
  p.finish();
  Optimizer optimizer(p.module, {});
  EXPECT_THROW(optimizer.load_state({}, {{"other", 3}}), ModelError);
  EXPECT_THROW(optimizer.load_state({}, {{"w", 3}}), ModelError);
  EXPECT_THROW(
      optimizer.load_state(
          {{"exp_avg.w", Tensor::zeros({3})}, {"exp_avg_sq.w", Tensor::zeros({3})}}, {{"w", 3}}),
      ModelError);
}

TEST(Trainable, patterns_choose_and_strangers_are_refused) {
  EXPECT_TRUE(train::matches_pattern("encoder.layers.0.weight", "encoder.*.weight"));
  EXPECT_TRUE(train::matches_pattern("abc", "a?c"));
  EXPECT_FALSE(train::matches_pattern("abc", "a?"));
  EXPECT_FALSE(train::matches_pattern("abc", ""));
  EXPECT_TRUE(train::matches_pattern("aab", "*ab"));
  Parameters p;
  p.add("encoder.w", {2}, true);
  p.add("classifier.w", {2}, true);
  p.finish();
  train::choose_trainable(p.module, {"classifier.*"}, {});
  EXPECT_FALSE(p.module.find("encoder.w")->trainable);
  EXPECT_TRUE(p.module.find("classifier.w")->trainable);
  EXPECT_THROW(train::choose_trainable(p.module, {"decoder.*"}, {}), ConfigError);
  EXPECT_THROW(train::choose_trainable(p.module, {}, {"*"}), ConfigError);
}
