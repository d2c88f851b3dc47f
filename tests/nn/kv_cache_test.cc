#include "nn/kv_cache.h"

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "qkv/error.h"

#include "support/tensors.h"

using namespace qkv;
using namespace qkv::testing;

namespace {

constexpr std::int64_t kHeads = 2, kSize = 3;

// The rows of stream `s` that are tokens [begin, end) of layer `layer`.
Tensor rows(std::uint64_t s, std::int64_t layer, std::int64_t begin, std::int64_t end) {
  const Tensor all = random_tensor({400, kHeads, kSize},
                                   100 * s + static_cast<std::uint64_t>(layer), DType::kFloat32);
  return all.narrow(0, begin, end - begin);
}

Tensor negated(const Tensor& x) {
  Tensor y = x.clone();
  for (std::int64_t i = 0; i < y.numel(); ++i) y.data<float>()[i] = -y.data<float>()[i];
  return y;
}

// Appends tokens [begin, end) of source `s` to sequence b in all layers, and compares what comes
// back with the last rows of all so far.
void append(nn::KvCache& cache, std::uint64_t s, std::int64_t b, std::int64_t begin,
            std::int64_t end) {
  for (std::int64_t layer = 0; layer < cache.num_layers(); ++layer) {
    const Tensor k = rows(s, layer, begin, end);
    const nn::KvCache::Keys keys = cache.append(layer, b, k, negated(k));
    const std::int64_t held = keys.k.dim(0);
    ASSERT_LE(held, end);
    EXPECT_TRUE(same_bits(keys.k.contiguous(), rows(s, layer, end - held, end).contiguous()));
    EXPECT_TRUE(same_bits(keys.v.contiguous(), negated(rows(s, layer, end - held, end))));
  }
}

}  // namespace

TEST(KvCache, streams_grow_side_by_side) {
  nn::KvCache cache({{kHeads, kSize, 0}, {kHeads, kSize, 0}});
  const std::int64_t first = cache.open(), second = cache.open();
  cache.begin({first, second});
  append(cache, 1, 0, 0, 5);
  append(cache, 2, 1, 0, 70);
  cache.commit(std::vector<std::int64_t>{5, 70});
  cache.begin({second});
  append(cache, 2, 0, 70, 71);
  cache.commit(std::vector<std::int64_t>{1});
  for (std::int64_t t = 5; t < 150; ++t) {
    cache.begin({second, first});
    append(cache, 2, 0, t + 66, t + 67);
    append(cache, 1, 1, t, t + 1);
    cache.commit(std::vector<std::int64_t>{1, 1});
  }
  EXPECT_EQ(cache.length(first), 150);
  EXPECT_EQ(cache.length(second), 216);
  cache.close(first);
  cache.close(second);
  EXPECT_EQ(cache.bytes(), 0U);
}

TEST(KvCache, b21_a_fork_goes_on_by_itself) {
  nn::KvCache cache({{kHeads, kSize, 0}, {kHeads, kSize, 8}});
  const std::int64_t parent = cache.open();
  cache.begin({parent});
  append(cache, 1, 0, 0, 100);
  cache.commit(std::vector<std::int64_t>{100});
  const std::int64_t child = cache.fork(parent);
  EXPECT_EQ(cache.length(child), 100);
  cache.begin({child, parent});
  append(cache, 1, 0, 100, 103);
  append(cache, 1, 1, 100, 102);
  cache.commit(std::vector<std::int64_t>{3, 2});
  cache.close(parent);
  cache.begin({child});
  append(cache, 1, 0, 103, 104);
  cache.commit(std::vector<std::int64_t>{1});
}

TEST(KvCache, windows_drop_what_no_query_sees) {
  for (const std::int64_t window : {1, 2, 5, 90}) {
    nn::KvCache cache({{kHeads, kSize, window}});
    const std::int64_t stream = cache.open();
    for (std::int64_t t = 0; t < 400;) {
      const std::int64_t n = std::min<std::int64_t>(400 - t, t % 3 == 0 ? 1 : 7);
      cache.begin({stream});
      const Tensor k = rows(1, 0, t, t + n);
      const std::int64_t held = cache.append(0, 0, k, k).k.dim(0);
      EXPECT_GE(held, std::min(t, window - 1) + n);
      EXPECT_LE(held, std::max<std::int64_t>(2 * window, window + 64) + n);
      append(cache, 1, 0, t, t + n);  // the same again: nothing was committed
      cache.commit(std::vector<std::int64_t>{n});
      t += n;
    }
    EXPECT_EQ(cache.length(stream), 400);
    EXPECT_LE(cache.bytes(),
              static_cast<std::size_t>(4 * (2 * window + 140)) * 2 * kHeads * kSize * 4);
  }
}

TEST(KvCache, a_pass_without_commit_leaves_no_trace) {
  nn::KvCache cache({{kHeads, kSize, 0}});
  const std::int64_t stream = cache.open();
  cache.begin({stream});
  append(cache, 1, 0, 0, 4);
  cache.commit(std::vector<std::int64_t>{4});
  cache.begin({stream});
  const Tensor other = rows(9, 0, 0, 80);
  cache.append(0, 0, other, other);
  cache.begin({stream});
  append(cache, 1, 0, 4, 6);
  cache.commit(std::vector<std::int64_t>{2});
  EXPECT_EQ(cache.length(stream), 6);
}

TEST(KvCache, refuses_what_does_not_fit) {
  nn::KvCache cache({{kHeads, kSize, 0}});
  const std::int64_t stream = cache.open();
  EXPECT_THROW(cache.begin({stream, stream}), ArgumentError);
  EXPECT_THROW(cache.begin({stream + 1}), ArgumentError);
  cache.begin({stream});
  const Tensor k = Tensor::zeros({2, kHeads, kSize});
  EXPECT_THROW(cache.append(1, 0, k, k), ArgumentError);
  EXPECT_THROW(cache.append(0, 1, k, k), ArgumentError);
  EXPECT_THROW(cache.append(0, 0, k, Tensor::zeros({1, kHeads, kSize})), ShapeError);
  EXPECT_THROW(cache.append(0, 0, Tensor::zeros({2, kSize, kHeads}), k), ShapeError);
  EXPECT_THROW(cache.commit(std::vector<std::int64_t>{1, 2}), ArgumentError);
  cache.close(stream);
  EXPECT_THROW(cache.length(stream), ArgumentError);
  EXPECT_THROW(nn::KvCache({{0, 1, 0}}), ArgumentError);
}
