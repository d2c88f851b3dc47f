// Flash attention against the reference on random problems, on every instruction set.
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include <fmt/ranges.h>

#include "attention_support.h"
#include "base/cpu.h"
#include "kernels/registry.h"

using namespace qkv;
using namespace qkv::testing;

namespace {

// A random problem: ragged or padded in either order, views of larger buffers, any masks.
struct RandomProblem {
  RaggedLayout queries, keys;
  bool ragged = false, heads_first = false;
  ops::AttentionInput input;
  ops::AttentionOptions options;
  Tensor dout;
  Shape dbias;  // rank 0: not wanted
  std::string text;
};

std::int64_t pick(Random& random, std::initializer_list<std::int64_t> values) {
  return values.begin()[random.below(values.size())];
}

// [tokens.., heads, channels] as a view of a buffer with room on every side, filled with NaN.
Tensor strided(const Shape& shape, std::uint64_t seed) {
  Shape larger = shape;
  for (int i = 1; i < shape.rank(); ++i) larger[i] += 1 + static_cast<std::int64_t>(seed % 3);
  const Tensor buffer = Tensor::empty(larger);
  buffer.fill(NAN);
  Tensor view = buffer;
  for (int i = 1; i < shape.rank(); ++i) view = view.narrow(i, i % 2, shape[i]);
  view.copy_from(random_tensor(shape, DType::kFloat32, seed));
  return view;
}

Tensor random_keep(Random& random, const Shape& shape) {
  Tensor keep = Tensor::empty(shape, DType::kBool);
  const std::uint64_t share = random.below(5);
  for (std::int64_t i = 0; i < keep.numel(); ++i)
    keep.data<bool>()[i] = share == 4 || random.below(4) < share;
  return keep;
}

Mask random_mask(Random& random, std::int64_t b, std::int64_t h, std::int64_t n, std::int64_t s,
                 const std::vector<std::int64_t>& key_lengths) {
  Mask mask;
  const auto widest = static_cast<std::uint64_t>(std::max<std::int64_t>(90, s / 2));
  if (random.below(3) == 0) mask = mask & Mask::causal();
  if (random.below(4) == 0)
    mask = mask & Mask::window(1 + static_cast<std::int64_t>(random.below(widest)));
  if (random.below(6) == 0)
    mask = mask & Mask::window(static_cast<std::int64_t>(random.below(widest / 2)) - 1,
                               static_cast<std::int64_t>(random.below(widest / 2)) - 1);
  if (random.below(4) == 0) {
    std::vector<std::int64_t> lengths;
    for (const std::int64_t length : key_lengths)
      lengths.push_back(
          static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(length) + 1)));
    mask = mask & Mask::lengths(lengths);
  }
  if (random.below(4) == 0) mask = mask & Mask::keep(random_keep(random, {n, s}));
  if (random.below(5) == 0) mask = mask & Mask::block(random_keep(random, {b, 1, 1, s}));
  if (random.below(5) == 0) {
    Tensor bias = random_tensor({b, h, n, s}, DType::kFloat32, random.next_u64());
    for (std::int64_t i = 0; i < bias.numel(); ++i)
      if (random.below(5) == 0) bias.data<float>()[i] = -kInf;
    mask = mask & Mask::additive(bias);
  }
  if (random.below(8) == 0)
    mask = mask & Mask::additive(random_tensor({n, 1}, DType::kFloat64, random.next_u64()));
  if (random.below(5) == 0) mask = mask & Mask::alibi(alibi_slopes(h));
  for (int i = 0; i < 2; ++i)
    if (random.below(6) == 0) {
      std::vector<std::int64_t> tokens;
      for (std::uint64_t g = random.below(4); g > 0; --g)
        tokens.push_back(static_cast<std::int64_t>(random.below(150)));
      mask =
          mask & Mask::window_with_globals(static_cast<std::int64_t>(random.below(40)),
                                           static_cast<std::int64_t>(random.below(60)) - 1, tokens);
    }
  return mask;
}

// Long problems are few and narrow, since the reference takes the square of their length in double.
RandomProblem random_problem(std::uint64_t seed, std::int64_t longest) {
  Random random(seed);
  RandomProblem p;
  const bool wide = longest <= 200;
  const std::int64_t kv_heads = wide ? pick(random, {1, 1, 2, 3}) : pick(random, {1, 1, 2});
  const std::int64_t heads = kv_heads * (wide ? pick(random, {1, 1, 2, 3}) : pick(random, {1, 2}));
  const std::int64_t d =
      wide ? pick(random, {1, 3, 8, 16, 32, 33, 64, 80, 100}) : pick(random, {1, 8, 16, 33, 64});
  const std::int64_t dv = random.below(3) ? d
                          : wide          ? pick(random, {2, 16, 20, 32, 64, 96})
                                          : pick(random, {2, 20, 32});
  const auto b = static_cast<std::int64_t>(1 + random.below(wide ? 4 : 3));
  p.ragged = random.below(2) == 0;
  p.heads_first = !p.ragged && random.below(2) == 0;
  const auto length = [&] {
    return static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(longest) + 1));
  };
  std::vector<std::int64_t> n, s;
  const std::int64_t same_n = length(), same_s = random.below(2) ? length() : same_n;
  const bool self = random.below(2) == 0;
  for (std::int64_t i = 0; i < b; ++i) {
    n.push_back(p.ragged ? length() : same_n);
    s.push_back(p.ragged ? (self ? n.back() : length()) : same_s);
  }
  p.queries = RaggedLayout::from_lengths(n);
  p.keys = RaggedLayout::from_lengths(s);
  const std::int64_t max_n = p.queries.max_length(), max_s = p.keys.max_length();
  const auto shape = [&](bool is_query, std::int64_t h, std::int64_t channels) {
    if (p.ragged) return Shape{is_query ? p.queries.tokens() : p.keys.tokens(), h, channels};
    const std::int64_t tokens = is_query ? same_n : same_s;
    return p.heads_first ? Shape{b, h, tokens, channels} : Shape{b, tokens, h, channels};
  };
  p.input.q = strided(shape(true, heads, d), seed * 7 + 1);
  p.input.k = strided(shape(false, kv_heads, d), seed * 7 + 2);
  p.input.v = strided(shape(false, kv_heads, dv), seed * 7 + 3);
  p.dout = strided(shape(true, heads, dv), seed * 7 + 4);
  p.input.heads_first = p.heads_first;
  p.options.mask = random_mask(random, b, heads, max_n, max_s, s);
  if (random.below(3) == 0) {
    p.options.dropout_p = 0.3;
    p.options.dropout_key = {random.next_u64(), 5};
  }
  if (random.below(4) == 0) p.options.softcap = random.below(2) ? 0.8 : 20;
  if (random.below(3) == 0) {
    const auto extent = [&](std::int64_t full) { return random.below(2) ? full : std::int64_t{1}; };
    p.dbias = random.below(4) == 0 ? Shape{extent(max_n), extent(max_s)}
                                   : Shape{extent(b), extent(heads), extent(max_n), extent(max_s)};
  }
  p.text = fmt::format(
      "seed {} B {} H {}/{} D {} Dv {} N {} S {} {} mask {} dropout {} softcap {} dbias {}", seed,
      b, heads, kv_heads, d, dv, fmt::join(n, ","), fmt::join(s, ","),
      p.ragged        ? "ragged"
      : p.heads_first ? "heads first"
                      : "padded",
      p.options.mask.str(), p.options.dropout_p, p.options.softcap.value_or(0), p.dbias.str());
  return p;
}

// The input is set when the layouts have their final address.
ops::AttentionInput input_of(const RandomProblem& p) {
  ops::AttentionInput input = p.input;
  if (p.ragged) {
    input.queries = &p.queries;
    input.keys = &p.keys;
  }
  return input;
}

// Runs into gradient views with gaps, and checks that the gaps are left alone.
AttentionRun run_strided(const RandomProblem& p) {
  const ops::AttentionInput input = input_of(p);
  AttentionRun run;
  run.result = ops::attention(input, p.options);
  std::vector<Tensor> buffers;
  const auto view = [&](const Tensor& like) {
    Shape larger = like.shape();
    larger[larger.rank() - 1] += 3;
    buffers.push_back(Tensor::empty(larger));
    buffers.back().fill(77);
    return buffers.back().narrow(larger.rank() - 1, 2, like.dim(-1));
  };
  run.gradients = {view(input.q), view(input.k), view(input.v)};
  if (p.dbias.rank() > 0) run.gradients.dbias = view(Tensor::empty(p.dbias));
  ops::attention_backward(p.dout, input, run.result, p.options, run.gradients);
  for (const Tensor& buffer : buffers)
    for (std::int64_t row = 0; row < buffer.numel() / buffer.dim(-1); ++row)
      for (const std::int64_t at : {std::int64_t{0}, std::int64_t{1}, buffer.dim(-1) - 1})
        EXPECT_EQ(buffer.data<float>()[row * buffer.dim(-1) + at], 77) << p.text;
  return run;
}

void expect_close(const AttentionRun& a, const AttentionRun& b, const std::string& text) {
  EXPECT_LE(scaled_difference(a.result.out, b.result.out), 2e-6) << "out " << text;
  EXPECT_LE(scaled_difference(a.result.lse, b.result.lse), 2e-6) << "lse " << text;
  EXPECT_LE(scaled_difference(a.gradients.dq, b.gradients.dq), 5e-6) << "dq " << text;
  EXPECT_LE(scaled_difference(a.gradients.dk, b.gradients.dk), 5e-6) << "dk " << text;
  EXPECT_LE(scaled_difference(a.gradients.dv, b.gradients.dv), 5e-6) << "dv " << text;
  if (b.gradients.dbias.defined()) {
    // One element may sum the roundings of all pairs of a batch; the exact sum is often 0.
    const double pairs = static_cast<double>(a.gradients.dq.numel() * b.gradients.dk.numel()) /
                         static_cast<double>(std::max<std::int64_t>(a.gradients.dbias.numel(), 1));
    EXPECT_LE(scaled_difference(a.gradients.dbias, b.gradients.dbias),
              std::max(5e-6, 1e-8 * std::sqrt(pairs)))
        << "dbias " << text;
  }
}

class AttentionParity : public ::testing::TestWithParam<const char*> {
 protected:
  static void compare(const RandomProblem& p) {
    AttentionRun expected, got;
    {
      const kernels::ImplementationScope scope(kernels::kReference);
      expected = run_strided(p);
    }
    {
      const kernels::ImplementationScope scope(GetParam());
      got = run_strided(p);
    }
    expect_close(got, expected, p.text);
  }
};

}  // namespace

TEST_P(AttentionParity, random_problems) {
  for (std::uint64_t seed = 0; seed < 160 && !HasFailure(); ++seed)
    compare(random_problem(seed, seed % 4 == 0 ? 200 : seed % 4 == 1 ? 70 : 20));
}

// QKV_ATTENTION_SEEDS=FIRST,COUNT looks further than the few that every run of the tests pays for.
TEST_P(AttentionParity, long_random_problems) {
  std::uint64_t first = 1000, count = 6;
  if (const char* more = std::getenv("QKV_ATTENTION_SEEDS")) {
    ASSERT_EQ(std::sscanf(more, "%" SCNu64 ",%" SCNu64, &first, &count), 2) << more;
  }
  for (std::uint64_t seed = first; seed < first + count && !HasFailure(); ++seed)
    compare(random_problem(seed, 1200));
}

INSTANTIATE_TEST_SUITE_P(Implementations, AttentionParity, ::testing::ValuesIn([] {
                           auto names = kernels::runnable_implementations();
                           names.pop_back();  // the reference itself
                           return names;
                         }()),
                         [](const auto& param) { return std::string(param.param); });
