// Attention over parts of the keys put together is attention over all of them.
#include "ops/attention_merge.h"

#include <cstring>

#include "attention_support.h"

using namespace qkv;
using namespace qkv::testing;

namespace {

ops::AttentionResult over_keys(const ops::AttentionInput& all, std::int64_t begin,
                               std::int64_t count) {
  const int tokens = all.heads_first ? 2 : 1;
  ops::AttentionInput part = all;
  part.k = all.k.narrow(tokens, begin, count);
  part.v = all.v.narrow(tokens, begin, count);
  return ops::attention(part, {});
}

}  // namespace

TEST(MergeAttention, of_parts_is_attention_over_all) {
  for (const bool heads_first : {false, true})
    for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kBFloat16}) {
      const auto make = [&](std::int64_t tokens, std::int64_t heads, std::uint64_t seed) {
        const Tensor x = random_tensor({2, tokens, heads, 8}, dtype, seed);
        return heads_first ? x.transpose(1, 2) : x;
      };
      const ops::AttentionInput all{make(5, 3, 1), make(40, 3, 2), make(40, 3, 3),
                                    nullptr,       nullptr,        heads_first};
      const ops::AttentionResult whole = ops::attention(all, {});
      const ops::AttentionResult left = over_keys(all, 0, 7), right = over_keys(all, 7, 33);
      const ops::AttentionResult merged = ops::merge_attention(left, right, heads_first);
      const double tolerance = dtype == DType::kFloat64 ? 1e-14 : 2e-6;
      EXPECT_LE(scaled_difference(merged.out, whole.out),
                dtype == DType::kBFloat16 ? 0.01 : tolerance);
      EXPECT_LE(scaled_difference(merged.lse, whole.lse), tolerance);
      EXPECT_TRUE(equal_bits(ops::merge_attention(right, left, heads_first).out, merged.out));
    }
}

// A side without keys takes no part whatever it holds; two such sides give zeros and -inf.
TEST(MergeAttention, rows_without_keys) {
  const Tensor lse = Tensor::from<float>({-kInf, 2, -kInf}, {1, 3});
  const Tensor other_lse = Tensor::from<float>({0.5f, -kInf, -kInf}, {1, 3});
  const Tensor a = Tensor::from<float>({kNan, 4, kNan}, {3, 1, 1});
  const Tensor b = Tensor::from<float>({7, kInf, kInf}, {3, 1, 1});
  const ops::AttentionResult left{a, lse, Tensor()}, right{b, other_lse, Tensor()};
  const ops::AttentionResult merged = ops::merge_attention(left, right);
  expect_values(merged.out, {7, 4, 0}, 0);
  EXPECT_EQ(values_of(merged.lse), (std::vector<double>{0.5, 2, -INFINITY}));
  const Tensor dout = Tensor::from<float>({1, 1, 1}, {3, 1, 1});
  const ops::MergeGradients d = ops::merge_attention_backward(dout, Tensor(), left, right, merged);
  expect_values(d.a_out, {0, 1, 0}, 0);
  expect_values(d.b_out, {1, 0, 0}, 0);
  expect_values(d.a_lse, {0, 0, 0}, 0);
  expect_values(d.b_lse, {0, 0, 0}, 0);
}

TEST(MergeAttention, refuses_what_does_not_fit) {
  const ops::AttentionResult a{Tensor::zeros({3, 2, 4}), Tensor::zeros({2, 3}), Tensor()};
  EXPECT_THROW(ops::merge_attention(a, {Tensor::zeros({3, 2, 5}), a.lse, Tensor()}), ShapeError);
  EXPECT_THROW(ops::merge_attention(a, {a.out, Tensor::zeros({3, 2}), Tensor()}), ShapeError);
  EXPECT_THROW(ops::merge_attention(a, {a.out.to(DType::kFloat64), a.lse, Tensor()}), ShapeError);
  EXPECT_THROW(ops::merge_attention(a, {}), ShapeError);
  EXPECT_THROW(ops::merge_attention_backward(Tensor(), Tensor(), a, a, a), ShapeError);
}
