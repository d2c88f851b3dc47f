// Few queries against a long cache: numbers, bits, bounds, hidden data, and when it is chosen.
#include <cstring>

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include "qkv/threads.h"

#include "attention_support.h"
#include "kernels/registry.h"

using namespace qkv;
using namespace qkv::testing;

namespace {

class AttentionDecode : public ::testing::TestWithParam<const char*> {
 protected:
  kernels::ImplementationScope scope_{GetParam()};
};

struct Cache {
  std::int64_t b = 2, n = 1, s = 700, heads = 8, kv_heads = 2, d = 32, dv = 32;
  ops::AttentionOptions options;

  ops::AttentionInput input(bool heads_first = false) const {
    const auto make = [&](std::int64_t h, std::int64_t tokens, std::int64_t c, std::uint64_t seed) {
      const Tensor x = random_tensor({b, tokens, h, c}, DType::kFloat32, seed);
      return heads_first ? x.transpose(1, 2) : x;
    };
    return {
        make(heads, n, d, 1), make(kv_heads, s, d, 2), make(kv_heads, s, dv, 3), nullptr, nullptr,
        heads_first};
  }
  void expect_right() const {
    const ops::AttentionInput in = input();
    EXPECT_EQ(ops::explain_attention(in, options).back().name.rfind("decode-", 0), 0u);
    ops::AttentionOptions naive = options;
    naive.backend = ops::AttentionBackend::kNaive;
    const ops::AttentionResult got = ops::attention(in, options), right = ops::attention(in, naive);
    const std::string text = fmt::format("N {} S {} H {}/{} D {} Dv {} {}", n, s, heads, kv_heads,
                                         d, dv, options.mask.str());
    EXPECT_LE(scaled_difference(got.out, right.out), 2e-6) << text;
    EXPECT_LE(scaled_difference(got.lse, right.lse), 2e-6) << text;
    const ops::AttentionInput turned = input(true);
    EXPECT_TRUE(equal_bits(ops::attention(turned, options).out.transpose(1, 2), got.out)) << text;
  }
};

}  // namespace

TEST_P(AttentionDecode, equals_the_reference) {
  for (const std::int64_t n : {1, 2, 8})
    for (const std::int64_t group : {1, 4, 20})
      for (const std::int64_t d : {1, 33, 64}) {
        if (n > 1 && group > 1 && d != 33) continue;
        Cache c;
        c.b = 1;
        c.n = n;
        c.heads = 2 * group;
        c.d = d;
        c.dv = d == 33 ? 20 : d;
        c.s = 256 + 7 * n;
        c.expect_right();
        c.options.mask = Mask::causal();
        c.s = 900;
        c.expect_right();
      }
}

TEST_P(AttentionDecode, takes_every_mask) {
  Cache c;
  c.n = 3;
  Tensor keep = Tensor::empty({2, 1, 1, 700}, DType::kBool);
  for (std::int64_t i = 0; i < keep.numel(); ++i) keep.data<bool>()[i] = i % 5 != 2;
  const Tensor bias = random_tensor({1, 8, 3, 700}, DType::kFloat32, 9);
  for (const Mask& mask :
       {Mask::lengths({601, 0}), Mask::keep(keep), Mask::additive(bias),
        Mask::causal() & Mask::window(100), Mask::alibi(alibi_slopes(8)) & Mask::causal(),
        Mask::window_with_globals(30, 0, {0, 5, 699}),
        Mask::window(1) & Mask::lengths({600, 650})}) {
    c.options.mask = mask;
    c.options.softcap.reset();
    c.expect_right();
    c.options.softcap = 2;
    c.expect_right();
  }
}

TEST_P(AttentionDecode, rows_without_keys_are_zero) {
  Cache c;
  c.options.mask = Mask::lengths({0, 700});
  const ops::AttentionResult r = ops::attention(c.input(), c.options);
  for (const double x : values_of(r.out.select(0, 0))) EXPECT_EQ(x, 0);
  for (const double x : values_of(r.lse.select(0, 0))) EXPECT_EQ(x, -INFINITY);
}

TEST_P(AttentionDecode, bits_depend_neither_on_threads_nor_on_batch_mates) {
  const std::vector<std::int64_t> n = {1, 40, 2, 0, 1}, s = {2100, 40, 300, 290, 255};
  const RaggedLayout queries = RaggedLayout::from_lengths(n), keys = RaggedLayout::from_lengths(s);
  const Tensor q = random_tensor({queries.tokens(), 4, 16}, DType::kFloat32, 1);
  const Tensor k = random_tensor({keys.tokens(), 1, 16}, DType::kFloat32, 2);
  const Tensor v = random_tensor({keys.tokens(), 1, 16}, DType::kFloat32, 3);
  const int before = num_threads();
  set_num_threads(1);
  const ops::AttentionResult all = ops::attention({q, k, v, &queries, &keys}, {});
  set_num_threads(3);
  EXPECT_TRUE(equal_bits(ops::attention({q, k, v, &queries, &keys}, {}).out, all.out));
  for (std::int64_t b = 0; b < queries.batch(); ++b) {
    const auto at = static_cast<std::size_t>(b);
    const RaggedLayout one_query = RaggedLayout::from_lengths(std::vector{n[at]});
    const RaggedLayout one_key = RaggedLayout::from_lengths(std::vector{s[at]});
    const auto part = [&](const Tensor& x, const RaggedLayout& layout) {
      return x.narrow(0, layout.starts[at], layout.length(b)).clone();
    };
    const ops::AttentionResult alone =
        ops::attention({part(q, queries), part(k, keys), part(v, keys), &one_query, &one_key}, {});
    EXPECT_TRUE(equal_bits(alone.out, part(all.out, queries))) << b;
  }
  set_num_threads(before);
}

TEST_P(AttentionDecode, hidden_data_changes_no_bit) {
  Cache c;
  c.n = 2;
  ops::AttentionInput in = c.input();
  Tensor keep = Tensor::empty({1, 700}, DType::kBool);
  for (std::int64_t j = 0; j < 700; ++j) keep.data<bool>()[j] = j % 7 != 3;
  c.options.mask = Mask::keep(keep) & Mask::lengths({500, 1}) & Mask::window(650);
  const ops::AttentionResult clean = ops::attention(in, c.options);
  for (const Tensor& x : {in.k, in.v})
    for (std::int64_t b = 0; b < 2; ++b)
      for (std::int64_t j = 0; j < 700; ++j)
        if (j % 7 == 3 || j >= (b == 0 ? 500 : 1) || j <= 698 - 650)
          std::memset(x.data<float>() + (b * 700 + j) * 2 * 32, 0xFF, 2 * 32 * sizeof(float));
  const ops::AttentionResult dirty = ops::attention(in, c.options);
  EXPECT_TRUE(equal_bits(dirty.out, clean.out));
  EXPECT_TRUE(equal_bits(dirty.lse, clean.lse));
}

TEST_P(AttentionDecode, nothing_is_read_beyond_the_buffers) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  for (const std::int64_t d : {1, 5, 16, 33, 64}) {
    const std::int64_t s = 301;
    const std::size_t bytes = static_cast<std::size_t>(s * d) * sizeof(float);
    const std::size_t pages = (bytes + page - 1) / page * page;
    std::vector<char*> memory;
    const auto guarded = [&](std::uint64_t seed) {
      char* base = static_cast<char*>(
          mmap(nullptr, pages + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
      mprotect(base + pages, page, PROT_NONE);
      memory.push_back(base);
      Tensor x = Tensor::wrap(base + pages - bytes, {1, s, 1, d}, DType::kFloat32);
      x.copy_from(random_tensor({1, s, 1, d}, DType::kFloat32, seed));
      return x;
    };
    const Tensor k = guarded(1), v = guarded(2),
                 q = random_tensor({1, 1, 4, d}, DType::kFloat32, 3);
    for (const double x : values_of(ops::attention({q, k, v}, {}).out))
      ASSERT_TRUE(std::isfinite(x));
    for (char* base : memory) munmap(base, pages + page);
  }
}

INSTANTIATE_TEST_SUITE_P(Implementations, AttentionDecode, ::testing::ValuesIn([] {
                           auto names = kernels::runnable_implementations();
                           names.pop_back();  // the reference
                           return names;
                         }()),
                         [](const auto& param) { return std::string(param.param); });

TEST(AttentionExplain, says_when_it_decodes) {
  Cache c;
  const auto choices = ops::explain_attention(c.input(), c.options);
  EXPECT_EQ(choices.back().name.rfind("decode-", 0), 0u);
  c.n = 9;
  const auto flash = ops::explain_attention(c.input(), c.options);
  EXPECT_EQ(flash.back().name.rfind("flash-", 0), 0u);
  EXPECT_NE(flash[flash.size() - 2].refusal.find("sequence 0 has 9 and 700"), std::string::npos);
  c.n = 1;
  c.options.dropout_p = 0.5;
  EXPECT_EQ(ops::explain_attention(c.input(), c.options).back().name.rfind("flash-", 0), 0u);
}
