// Every rule against central differences in double.
#include "autograd/functions.h"

#include <gtest/gtest.h>

#include "autograd/gradcheck.h"
#include "support/tensors.h"

using namespace qkv;
using namespace qkv::testing;
using autograd::NamedVar;
using ops::Activation;

namespace {

constexpr double kTolerance = 2e-7;

Var input(const Shape& shape, std::uint64_t seed) { return Var(random_tensor(shape, seed), true); }

RaggedLayout ragged() {
  const std::vector<std::int64_t> lengths{3, 1, 5};
  return RaggedLayout::from_lengths(lengths);
}

void expect_gradients(const std::vector<NamedVar>& inputs, FunctionRef<Var(Context&)> f) {
  const autograd::GradcheckReport report = autograd::check_gradients(inputs, f);
  EXPECT_LE(report.worst, kTolerance) << report.where;
  EXPECT_GT(report.checked, 0);
}

ops::DropoutOptions dropout_of(double p, const RaggedLayout& layout) {
  return {p, {123, 4}, &layout};
}

}  // namespace

TEST(Gradcheck, finds_a_wrong_gradient) {
  const Var x = input({2, 3}, 1);
  const auto wrong = [&](Context& context) {
    Var y(ops::add(x.value(), x.value()), context.tape != nullptr);
    if (context.tape != nullptr) {  // misses the factor 2
      context.tape->record("wrong", y,
                           [g = x.gradient()](const Tensor& dy) { g.accumulate(dy, true); });
    }
    return y;
  };
  const autograd::GradcheckReport report = autograd::check_gradients({{"x", x}}, wrong);
  EXPECT_NEAR(report.worst, 0.5, 1e-3);
  EXPECT_NE(report.where.find("x["), std::string::npos);
}

TEST(Gradcheck, refuses_fp32) {
  const Var x(random_tensor({2}, 1, DType::kFloat32), true);
  EXPECT_THROW(autograd::check_gradients({{"x", x}}, [&](Context&) { return Var(x); }),
               ArgumentError);
}

class ActivationRule : public ::testing::TestWithParam<Activation> {};
TEST_P(ActivationRule, linear) {
  const Var x = input({5, 4}, 1), w = input({6, 4}, 2), b = input({6}, 3);
  expect_gradients({{"x", x}, {"w", w}, {"b", b}},
                   [&](Context& c) { return autograd::linear(c, x, w, b, GetParam()); });
  expect_gradients({{"x", x}, {"w", w}},
                   [&](Context& c) { return autograd::linear(c, x, w, Var(), GetParam()); });
}
TEST_P(ActivationRule, activate) {
  const Var x = input({5, 6}, 1);
  expect_gradients({{"x", x}}, [&](Context& c) { return autograd::activate(c, x, GetParam()); });
}
INSTANTIATE_TEST_SUITE_P(Kinds, ActivationRule,
                         ::testing::Values(Activation::kNone, Activation::kRelu, Activation::kGelu,
                                           Activation::kGeluTanh, Activation::kSilu,
                                           Activation::kSwiglu, Activation::kGeglu,
                                           Activation::kTanh, Activation::kGegluTanh),
                         [](const auto& param_info) {
                           return ops::activation_name(param_info.param);
                         });

TEST(Rules, linear_with_a_weight_that_two_layers_share) {
  const Var x = input({5, 4}, 1), w = input({4, 4}, 2), b = input({4}, 3), b2 = input({4}, 4);
  expect_gradients({{"x", x}, {"w", w}, {"b", b}, {"b2", b2}}, [&](Context& c) {
    return autograd::linear(c, autograd::linear(c, x, w, b), w, b2);
  });
}

TEST(Rules, linear_trains_the_bias_alone) {
  const Var x(random_tensor({5, 4}, 1)), w(random_tensor({4, 4}, 2)), b = input({4}, 3);
  expect_gradients({{"b", b}}, [&](Context& c) { return autograd::linear(c, x, w, b); });
  EXPECT_FALSE(w.has_grad());
}

TEST(Rules, embedding) {
  const Var table = input({7, 4}, 1);
  const std::vector<std::int32_t> ids{3, 3, 0, 6, 3};
  expect_gradients({{"table", table}}, [&](Context& c) {
    return autograd::embedding(c, ids, table, 1.5, "token embedding");
  });
}

class NormRule : public ::testing::TestWithParam<ops::NormKind> {
 protected:
  autograd::NormWeights weights() const {
    return {GetParam(), gamma_, GetParam() == ops::NormKind::kLayer ? beta_ : Var(), 1e-5};
  }
  std::vector<NamedVar> with_weights(std::vector<NamedVar> inputs) const {
    inputs.push_back({"gamma", gamma_});
    if (GetParam() == ops::NormKind::kLayer) inputs.push_back({"beta", beta_});
    return inputs;
  }
  Var x_ = input({9, 8}, 1), residual_ = input({9, 8}, 2), gamma_ = input({8}, 3),
      beta_ = input({8}, 4);
  RaggedLayout layout_ = ragged();
};
TEST_P(NormRule, norm) {
  expect_gradients(with_weights({{"x", x_}}),
                   [&](Context& c) { return autograd::norm(c, x_, weights()); });
}
TEST_P(NormRule, add_norm_with_both_results_used) {
  for (const double p : {0.0, 0.4, 1.0}) {
    expect_gradients(with_weights({{"x", x_}, {"residual", residual_}}), [&](Context& c) {
      const autograd::AddNorm r =
          autograd::add_norm(c, x_, residual_, dropout_of(p, layout_), weights());
      return autograd::add(c, r.y, r.sum);
    });
  }
}
TEST_P(NormRule, add_norm_with_one_result_used) {
  expect_gradients(with_weights({{"x", x_}, {"residual", residual_}}), [&](Context& c) {
    return autograd::add_norm(c, x_, residual_, dropout_of(0.3, layout_), weights()).y;
  });
  expect_gradients({{"x", x_}, {"residual", residual_}}, [&](Context& c) {
    return autograd::add_norm(c, x_, residual_, dropout_of(0.3, layout_), weights()).sum;
  });
}
TEST_P(NormRule, add_norm_of_a_value_with_itself) {
  expect_gradients({{"x", x_}}, [&](Context& c) {
    return autograd::add_norm(c, x_, x_, dropout_of(0, layout_), weights()).y;
  });
}
INSTANTIATE_TEST_SUITE_P(Kinds, NormRule,
                         ::testing::Values(ops::NormKind::kLayer, ops::NormKind::kRms),
                         [](const auto& param_info) {
                           return param_info.param == ops::NormKind::kLayer ? "layer" : "rms";
                         });

TEST(Rules, dropout) {
  const RaggedLayout layout = ragged();
  const Var x = input({9, 8}, 1), r = input({9, 8}, 2);
  for (const double p : {0.0, 0.5, 1.0}) {
    expect_gradients({{"x", x}}, [&](Context& c) {
      return autograd::dropout(c, autograd::add(c, x, x), dropout_of(p, layout));
    });
    expect_gradients({{"x", x}, {"r", r}}, [&](Context& c) {
      return autograd::add_dropout(c, x, r, dropout_of(p, layout));
    });
  }
}

TEST(Rules, rope_and_attention_with_grouped_heads) {
  const RaggedLayout layout = ragged();
  const autograd::HeadLayout heads{4, 2, 6};
  const Var x = input({9, 5}, 1), w = input({heads.width(), 5}, 2);
  for (const ops::RopePairing pairing :
       {ops::RopePairing::kHalfSplit, ops::RopePairing::kInterleaved}) {
    expect_gradients({{"x", x}, {"w", w}}, [&](Context& c) {
      c.layout = &layout;
      const Var qkv = autograd::linear(c, x, w, Var());
      return autograd::attention(c, autograd::rope(c, qkv, heads, {10000, pairing}), heads, {});
    });
  }
}

TEST(Rules, attention_with_masks_and_dropout) {
  const RaggedLayout layout = ragged();
  const autograd::HeadLayout heads{2, 2, 3};
  const Var qkv = input({9, heads.width()}, 1);
  for (const ops::AttentionBackend backend :
       {ops::AttentionBackend::kAuto, ops::AttentionBackend::kNaive}) {
    for (const Mask& mask :
         {Mask(), Mask::causal(), Mask::window(2), Mask::causal() & Mask::window(2)}) {
      for (const double p : {0.0, 0.4}) {
        ops::AttentionOptions options;
        options.backend = backend;
        options.mask = mask;
        options.dropout_p = p;
        options.dropout_key = {77, 3};
        expect_gradients({{"qkv", qkv}}, [&](Context& c) {
          c.layout = &layout;
          return autograd::attention(c, qkv, heads, options);
        });
      }
    }
  }
}

TEST(Rules, attention_with_a_bias) {
  const RaggedLayout layout = ragged();
  const autograd::HeadLayout heads{4, 2, 3};
  const Var qkv = input({9, heads.width()}, 1);
  const std::int64_t n = layout.max_length();
  for (const Shape& shape : {Shape{n, n}, Shape{1, 4, n, n}, Shape{1, 4, 1, n}}) {
    const Var bias = input(shape, 2);
    ops::AttentionOptions options;
    options.mask = Mask::causal();
    expect_gradients({{"qkv", qkv}, {"bias", bias}}, [&](Context& c) {
      c.layout = &layout;
      return autograd::attention(c, qkv, heads, options, bias);
    });
  }
}

TEST(Rules, linear_attention) {
  const RaggedLayout layout = ragged();
  const autograd::HeadLayout heads{4, 2, 3};
  const Var qkv = input({9, heads.width()}, 1);
  for (const bool causal : {false, true}) {
    expect_gradients({{"qkv", qkv}}, [&](Context& c) {
      c.layout = &layout;
      return autograd::linear_attention(c, qkv, heads, causal);
    });
  }
}

TEST(Rules, attention_refuses_a_projection_of_the_wrong_width) {
  const RaggedLayout layout = ragged();
  Context context;
  context.layout = &layout;
  const Var qkv = input({9, 17}, 1);
  EXPECT_THROW(autograd::attention(context, qkv, {2, 2, 3}, {}), ShapeError);
  EXPECT_THROW(autograd::rope(context, qkv, {2, 2, 3}, {}), ShapeError);
  Context without;
  EXPECT_THROW(autograd::attention(without, input({9, 18}, 1), {2, 2, 3}, {}), ArgumentError);
}

TEST(Rules, pool) {
  const RaggedLayout layout = ragged();
  const Var x = input({9, 4}, 1);
  for (const ops::Pooling pooling :
       {ops::Pooling::kFirst, ops::Pooling::kMean, ops::Pooling::kMax, ops::Pooling::kLast}) {
    expect_gradients({{"x", x}}, [&](Context& c) {
      c.layout = &layout;
      return autograd::pool(c, x, pooling);
    });
  }
}

TEST(Rules, softmax) {
  const Var x = input({4, 6}, 1);
  expect_gradients({{"x", x}}, [&](Context& c) { return autograd::softmax(c, x); });
}

TEST(Rules, cross_entropy) {
  const Var x = input({4, 6}, 1);
  const std::vector<std::int32_t> targets{5, -100, 0, 2};
  for (const double smoothing : {0.0, 0.2}) {
    expect_gradients({{"x", x}}, [&](Context& c) {
      return autograd::cross_entropy(c, x, targets, {smoothing, -100}).sum;
    });
  }
}

TEST(Rules, b09_dropout_of_everything_gives_zeros) {
  const RaggedLayout layout = ragged();
  const autograd::HeadLayout heads{2, 2, 3};
  const Var qkv = input({9, heads.width()}, 1);
  Tape tape;
  Context context;
  context.tape = &tape;
  context.layout = &layout;
  ops::AttentionOptions options;
  options.dropout_p = 1;
  const Var y = autograd::attention(context, qkv, heads, options);
  tape.backward(y, random_tensor(y.value().shape(), 2));
  for (const double v : values_of(y.value())) EXPECT_EQ(v, 0);
  for (const double g : values_of(qkv.grad())) EXPECT_EQ(g, 0);
}
