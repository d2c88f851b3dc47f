// Var, Gradient, Tape, Context.
#include <gtest/gtest.h>

#include "autograd/functions.h"
#include "base/memory.h"
#include "support/tensors.h"

using namespace qkv;
using namespace qkv::testing;

namespace {

Var leaf(std::initializer_list<double> values) {
  return Var(Tensor::from<double>(values, {1, static_cast<std::int64_t>(values.size())}), true);
}

}  // namespace

TEST(Gradient, overwrites_first_and_adds_afterwards) {
  const Var x = leaf({1, 2});
  const auto [first, into_first] = x.gradient().slot();
  EXPECT_EQ(into_first, ops::Into::kOverwrite);
  first.fill(3);
  const auto [second, into_second] = x.gradient().slot();
  EXPECT_EQ(into_second, ops::Into::kAdd);
  EXPECT_EQ(second.raw(), first.raw());
  x.gradient().accumulate(Tensor::from<double>({1, 1}, {1, 2}));
  EXPECT_EQ(values_of(x.grad()), (std::vector<double>{4, 4}));
  x.clear_grad();
  EXPECT_FALSE(x.has_grad());
  EXPECT_EQ(x.gradient().slot().second, ops::Into::kOverwrite);
}

TEST(Gradient, never_writes_into_memory_that_others_share) {
  const Var x = leaf({1, 2});
  const Tensor common = Tensor::from<double>({5, 5}, {1, 2});
  x.gradient().accumulate(common, /*shared=*/true);
  x.gradient().accumulate(Tensor::from<double>({1, 1}, {1, 2}));
  EXPECT_EQ(values_of(x.grad()), (std::vector<double>{6, 6}));
  EXPECT_EQ(values_of(common), (std::vector<double>{5, 5}));
  const Var y = leaf({1, 2});
  y.gradient().accumulate(common, /*shared=*/true);
  y.gradient().slot().first.fill(9);
  EXPECT_EQ(values_of(common), (std::vector<double>{5, 5}));
}

TEST(Gradient, lives_in_the_bound_buffer) {
  const Var x = leaf({1, 2});
  const Tensor buffer = Tensor::zeros({1, 2}, DType::kFloat64);
  x.bind_grad(buffer);
  x.gradient().accumulate(Tensor::from<double>({3, 4}, {1, 2}));
  x.gradient().accumulate(Tensor::from<double>({1, 1}, {1, 2}));
  EXPECT_EQ(values_of(buffer), (std::vector<double>{4, 5}));
  x.clear_grad();
  x.gradient().accumulate(Tensor::from<double>({7, 7}, {1, 2}));
  EXPECT_EQ(values_of(buffer), (std::vector<double>{7, 7}));
}

TEST(Gradient, refuses_another_shape_or_dtype) {
  const Var x = leaf({1, 2});
  EXPECT_THROW(x.gradient().accumulate(Tensor::zeros({2, 1}, DType::kFloat64)), ShapeError);
  EXPECT_THROW(x.gradient().accumulate(Tensor::zeros({1, 2}, DType::kFloat32)), ShapeError);
}

TEST(Tape, adds_the_gradients_of_every_use) {
  Tape tape;
  Context context;
  context.tape = &tape;
  const Var x = leaf({1, 2});
  const Var y = autograd::add(context, x, x);
  const Var z = autograd::add(context, y, x);
  tape.backward(z, Tensor::from<double>({1, 10}, {1, 2}));
  EXPECT_EQ(values_of(x.grad()), (std::vector<double>{3, 30}));
  EXPECT_EQ(tape.size(), 0U);
}

TEST(Tape, leaves_the_seed_alone) {
  Tape tape;
  Context context;
  context.tape = &tape;
  const Var x = leaf({1, 2});
  const Tensor seed = Tensor::from<double>({1, 10}, {1, 2});
  tape.backward(autograd::add(context, x, x), seed);
  EXPECT_EQ(values_of(seed), (std::vector<double>{1, 10}));
  EXPECT_EQ(values_of(x.grad()), (std::vector<double>{2, 20}));
}

TEST(Tape, skips_rules_whose_output_got_no_gradient) {
  Tape tape;
  Context context;
  context.tape = &tape;
  const Var x = leaf({1, 2}), w = leaf({3, 4});
  const Var used = autograd::add(context, x, x);
  const Var unused = autograd::add(context, w, x);
  tape.backward(used, Tensor::from<double>({1, 1}, {1, 2}));
  EXPECT_FALSE(w.has_grad());
  EXPECT_EQ(values_of(x.grad()), (std::vector<double>{2, 2}));
  EXPECT_FALSE(unused.has_grad());
}

TEST(Tape, records_nothing_when_nothing_needs_gradients) {
  Tape tape;
  Context context;
  context.tape = &tape;
  const Var x(Tensor::from<double>({1, 2}, {1, 2}));
  const Var y = autograd::add(context, x, x);
  EXPECT_EQ(tape.size(), 0U);
  EXPECT_FALSE(y.requires_grad());
  EXPECT_THROW(tape.backward(y, y.value()), ArgumentError);
  Context plain;
  EXPECT_FALSE(autograd::add(plain, leaf({1}), leaf({2})).requires_grad());
}

TEST(Tape, b36_parameters_get_gradients_when_the_input_needs_none) {
  Tape tape;
  Context context;
  context.tape = &tape;
  const Var x(random_tensor({3, 4}, 1));
  const Var w(random_tensor({2, 4}, 2), true);
  const Var y = autograd::linear(context, x, w, Var());
  tape.backward(y, random_tensor({3, 2}, 3));
  EXPECT_TRUE(w.has_grad());
  EXPECT_FALSE(x.has_grad());
}

TEST(Tape, frees_activations_as_it_goes) {
  const std::size_t before = memory_use().live;
  Tape tape;
  Context context;
  context.tape = &tape;
  std::size_t after_forward = 0, at_last_rule = 0;
  tape.set_watch([&](const char*, const std::string&, const Tensor&) {
    at_last_rule = memory_use().live - before;
  });
  const Var w(random_tensor({64, 64}, 1), true);
  Var y = Var(random_tensor({512, 64}, 2), true);
  for (int i = 0; i < 6; ++i) y = autograd::linear(context, y, w, Var(), ops::Activation::kGelu);
  after_forward = memory_use().live - before;
  tape.backward(y, random_tensor({512, 64}, 3));
  EXPECT_LT(at_last_rule, after_forward / 2);
}

TEST(Tape, names_op_and_module_to_the_watch) {
  Tape tape;
  Context context;
  context.tape = &tape;
  std::vector<std::string> seen;
  tape.set_watch([&](const char* op, const std::string& module, const Tensor&) {
    seen.push_back(module + ":" + op);
  });
  const Var x = leaf({1, 2});
  Var y;
  {
    const ModuleScope outer(context, "encoder");
    y = autograd::add(context, x, x);
    const ModuleScope inner(context, "layers.0");
    y = autograd::add(context, y, x);
  }
  y = autograd::add(context, y, x);
  tape.backward(y, Tensor::from<double>({1, 1}, {1, 2}));
  EXPECT_EQ(seen, (std::vector<std::string>{":add", "encoder.layers.0:add", "encoder:add"}));
}

TEST(Context, random_keys_depend_on_place_seed_and_step_alone) {
  Context a, b;
  a.seed = b.seed = 5;
  a.module = b.module = "encoder.layers.0";
  EXPECT_EQ(a.random_key(0).key, b.random_key(0).key);
  EXPECT_NE(a.random_key(0).key, a.random_key(1).key);
  b.module = "encoder.layers.1";
  EXPECT_NE(a.random_key(0).key, b.random_key(0).key);
  b.module = a.module;
  b.seed = 6;
  EXPECT_NE(a.random_key(0).key, b.random_key(0).key);
  b.step = 9;
  EXPECT_EQ(b.random_key(0).step, 9U);
}
