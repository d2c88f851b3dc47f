// Flat buffers, initial values, the residual stream.
#include "nn/module.h"

#include <cmath>
#include <memory>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "qkv/threads.h"

#include "nn/block.h"
#include "support/tensors.h"

using namespace qkv;
using namespace qkv::testing;
using nn::Init;

namespace {

struct Two {
  nn::Module module;
  Var a, b, c;
  Two() {
    module.begin_group("first");
    a = module.add("a", {3, 5}, Init::normal(1), true);
    b = module.add("b", {2}, Init::zeros(), false);
    module.begin_group("second");
    c = module.add("c", {4}, Init::ones(), false);
    module.finish();
    module.initialise(7);
  }
};

}  // namespace

TEST(Module, parameters_are_views_into_flat_buffers) {
  Two two;
  const nn::ParameterGroup& first = two.module.groups().at(0);
  EXPECT_EQ(first.offsets, (std::vector<std::int64_t>{0, 16}));
  EXPECT_EQ(first.values.numel(), 18);
  EXPECT_TRUE(two.a.value().shares_storage(first.values));
  EXPECT_EQ(two.b.value().data<float>(), first.values.data<float>() + 16);
  EXPECT_EQ(values_of(two.c.value()), (std::vector<double>{1, 1, 1, 1}));
  EXPECT_EQ(two.module.num_parameters(), 21);
  EXPECT_EQ(two.module.find("b")->name, "b");
  EXPECT_EQ(two.module.find("nothing"), nullptr);
  EXPECT_EQ(first.values.data<float>()[15], 0);  // between parameters
}

TEST(Module, gradients_are_views_and_are_overwritten_after_clear) {
  Two two;
  EXPECT_FALSE(two.module.groups().at(0).gradients.defined());
  two.module.enable_gradients();
  const Tensor flat = two.module.groups().at(0).gradients;
  two.b.gradient().accumulate(Tensor::from<float>({1, 2}, {2}));
  EXPECT_EQ(flat.data<float>()[17], 2);
  two.module.clear_gradients();
  EXPECT_FALSE(two.b.has_grad());
  EXPECT_EQ(flat.data<float>()[17], 2);  // stale until the next backward pass
  two.module.settle_gradients();
  EXPECT_EQ(flat.data<float>()[17], 0);
  two.b.gradient().accumulate(Tensor::from<float>({5, 6}, {2}));
  two.module.settle_gradients();
  EXPECT_EQ(flat.data<float>()[17], 6);
  two.module.zero_gradients();
  EXPECT_EQ(flat.data<float>()[17], 0);
}

TEST(Module, frozen_parameters_get_no_gradient) {
  Two two;
  two.module.set_trainable(two.module.groups().at(0).parameters.at(0), false);
  EXPECT_FALSE(two.a.requires_grad());
  Tape tape;
  Context context;
  context.tape = &tape;
  const Var x(random_tensor({2, 5}, 1, DType::kFloat32), true);
  tape.backward(autograd::linear(context, x, two.a, Var()),
                random_tensor({2, 3}, 2, DType::kFloat32));
  EXPECT_FALSE(two.a.has_grad());
  EXPECT_TRUE(x.has_grad());
}

TEST(Module, refuses_two_parameters_of_one_name) {
  nn::Module module;
  EXPECT_THROW(module.add("early", {1}, Init::zeros(), false), InternalError);
  module.begin_group("g");
  module.add("w", {1}, Init::zeros(), false);
  EXPECT_THROW(module.add("w", {1}, Init::zeros(), false), InternalError);
}

TEST(Init, is_a_pure_function_of_seed_and_name) {
  const auto make = [](std::uint64_t seed, const char* name, int threads,
                       DType dtype = DType::kFloat32) {
    const int before = num_threads();
    set_num_threads(threads);
    Tensor t = Tensor::empty({257, 129}, dtype);
    nn::initialise(t, Init::normal(0.5), seed, name);
    set_num_threads(before);
    return t;
  };
  EXPECT_TRUE(same_bits(make(1, "w", 1), make(1, "w", 3)));
  EXPECT_FALSE(same_bits(make(1, "w", 1), make(2, "w", 1)));
  EXPECT_FALSE(same_bits(make(1, "w", 1), make(1, "v", 1)));
  EXPECT_TRUE(same_bits(make(1, "w", 1), make(1, "w", 2, DType::kFloat64).to(DType::kFloat32)));
}

TEST(Init, has_the_promised_moments) {
  const auto moments = [](const Init& init) {
    const Tensor t = Tensor::empty({400, 500}, DType::kFloat64);
    nn::initialise(t, init, 3, "w");
    double sum = 0, squares = 0, largest = 0;
    for (const double x : values_of(t)) {
      sum += x;
      squares += x * x;
      largest = std::max(largest, std::abs(x));
    }
    return std::array{sum / 200000, std::sqrt(squares / 200000), largest};
  };
  const auto normal = moments(Init::normal(2));
  EXPECT_NEAR(normal[0], 0, 5 * 2 / std::sqrt(200000));
  EXPECT_NEAR(normal[1], 2, 0.02);
  EXPECT_GT(normal[2], 6);
  const auto uniform = moments(Init::uniform(0.3));
  EXPECT_NEAR(uniform[0], 0, 5 * 0.3 / std::sqrt(3 * 200000.0));
  EXPECT_NEAR(uniform[1], 0.3 / std::sqrt(3.0), 0.002);
  EXPECT_LT(uniform[2], 0.3);
  EXPECT_NEAR(Init::xavier(100, 500).scale, 0.1, 1e-12);
  EXPECT_NEAR(Init::fan_in(64).scale, 0.125, 1e-12);
}

namespace {

struct StreamFixture {
  nn::Module module{DType::kFloat64};
  nn::Norm norm;
  Var x{random_tensor({4, 6}, 1)}, branch{random_tensor({4, 6}, 2)};
  StreamFixture() {
    module.begin_group("g");
    norm = nn::Norm(nn::Builder(module, ""), "norm", 6, {NormChoice::kLayer, 1e-5});
    module.finish();
    module.initialise(1);
  }
};

}  // namespace

TEST(ResidualStream, delayed_sum_equals_the_immediate_one) {
  StreamFixture f;
  Context context;
  nn::ResidualStream delayed(f.x), immediate(f.x);
  delayed.add(context, f.branch, {});
  immediate.add(context, f.branch, {});
  immediate.value(context);
  EXPECT_TRUE(same_bits(delayed.normed(context, f.norm).value(),
                        immediate.normed(context, f.norm).value()));
  EXPECT_TRUE(same_bits(delayed.value(context).value(), immediate.value(context).value()));
  EXPECT_LE(
      relative_difference(delayed.value(context).value(), ops::add(f.x.value(), f.branch.value())),
      1e-16);
}

TEST(ResidualStream, no_branch_is_lost_when_two_come_in_a_row) {
  StreamFixture f;
  Context context;
  nn::ResidualStream stream(f.x);
  stream.add(context, f.branch, {});
  stream.add(context, f.branch, {});
  const Tensor twice = ops::add(ops::add(f.x.value(), f.branch.value()), f.branch.value());
  EXPECT_TRUE(same_bits(stream.value(context).value(), twice));
}

// The packed form is that of the values at its making: it goes when they change.
TEST(Module, packed_weights_are_dropped_when_weights_change) {
  Two two;
  EXPECT_EQ(two.a.packed(), nullptr);
  two.module.keep_packed();
  const auto packed = two.a.packed();
  ASSERT_NE(packed, nullptr);
  EXPECT_EQ(two.a.packed(), packed);
  EXPECT_EQ(two.b.packed(), nullptr);  // no matrix
  two.a.value().fill(2);
  two.module.bump_version();
  EXPECT_EQ(two.a.packed(), nullptr);
  two.module.keep_packed();
  const Tensor y = ops::linear(Tensor::from<float>({1, 1, 1, 1, 1}, {1, 5}), *two.a.packed(), {}).y;
  EXPECT_EQ(values_of(y), (std::vector<double>{10, 10, 10}));
  two.a.set_value(two.a.value().clone());
  EXPECT_EQ(two.a.packed(), nullptr);
}

TEST(Module, threads_share_one_packed_weight) {
  Two two;
  two.module.keep_packed();
  std::vector<std::shared_ptr<const ops::PackedWeight>> seen(8);
  std::vector<std::thread> threads;
  for (auto& one : seen) threads.emplace_back([&] { one = two.a.packed(); });
  for (std::thread& t : threads) t.join();
  for (const auto& one : seen) EXPECT_EQ(one, seen[0]);
}
