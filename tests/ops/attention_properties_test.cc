// What must hold beside the numbers: bits, memory, bounds, hidden data, explanations.
#include <cstring>

#include <fmt/core.h>
#include <sys/mman.h>
#include <unistd.h>

#include "qkv/threads.h"

#include "attention_support.h"
#include "base/memory.h"
#include "kernels/registry.h"

using namespace qkv;
using namespace qkv::testing;

namespace {

class AttentionProperties : public ::testing::TestWithParam<const char*> {
 protected:
  kernels::ImplementationScope scope_{GetParam()};
};

class ThreadsScope {
 public:
  explicit ThreadsScope(int n) : before_(num_threads()) { set_num_threads(n); }
  ~ThreadsScope() { set_num_threads(before_); }
  ThreadsScope(const ThreadsScope&) = delete;
  ThreadsScope& operator=(const ThreadsScope&) = delete;

 private:
  int before_;
};

// Self-attention over a fused projection [T, 3, H, D], gradients into such a buffer too.
struct Fused {
  RaggedLayout layout;
  Tensor qkv, dout, gradient;
  ops::AttentionOptions options;
  ops::AttentionResult result;

  Fused(const std::vector<std::int64_t>& lengths, std::int64_t heads, std::int64_t d)
      : layout(RaggedLayout::from_lengths(lengths)),
        qkv(random_tensor({layout.tokens(), 3, heads, d}, DType::kFloat32, 5)),
        dout(random_tensor({layout.tokens(), heads, d}, DType::kFloat32, 6)) {}

  ops::AttentionInput input() const {
    return {qkv.select(1, 0), qkv.select(1, 1), qkv.select(1, 2), &layout, &layout};
  }
  ops::AttentionGradients views() const {
    return {gradient.select(1, 0), gradient.select(1, 1), gradient.select(1, 2)};
  }
  void run() {
    result = ops::attention(input(), options);
    gradient = Tensor::empty(qkv.shape());
    gradient.fill(NAN);
    ops::attention_backward(dout, input(), result, options, views());
  }
};

// Memory that ends (and begins) at pages which must not be touched.
class Guarded {
 public:
  explicit Guarded(std::size_t bytes, bool at_end) : bytes_(bytes) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    pages_ = (bytes + page - 1) / page * page;
    base_ = static_cast<char*>(mmap(nullptr, pages_ + 2 * page, PROT_READ | PROT_WRITE,
                                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (base_ == MAP_FAILED) throw std::bad_alloc();
    mprotect(base_, page, PROT_NONE);
    mprotect(base_ + page + pages_, page, PROT_NONE);
    data_ = base_ + page + (at_end ? pages_ - bytes : 0);
    total_ = pages_ + 2 * page;
  }
  ~Guarded() { munmap(base_, total_); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  Tensor tensor(const Shape& shape) const { return Tensor::wrap(data_, shape, DType::kFloat32); }

 private:
  std::size_t bytes_, pages_, total_;
  char *base_, *data_;
};

std::vector<std::int64_t> short_lengths() { return {5, 60, 12, 0, 33, 1, 16, 17, 64, 8, 29}; }

}  // namespace

TEST_P(AttentionProperties, bits_do_not_depend_on_threads) {
  // Short texts; one long sequence, whose parts run side by side when threads are idle; both.
  for (const auto& lengths :
       std::vector<std::vector<std::int64_t>>{short_lengths(), {1300}, {1300, 40, 700, 3, 90}}) {
    Fused one(lengths, 2, 16), more(lengths, 2, 16);
    one.options.mask = more.options.mask = Mask::causal();
    one.options.dropout_p = more.options.dropout_p = 0.1;
    {
      const ThreadsScope threads(1);
      one.run();
    }
    for (const int n : {2, 3, 8}) {
      const ThreadsScope threads(n);
      more.run();
      EXPECT_TRUE(equal_bits(more.result.out, one.result.out)) << n;
      EXPECT_TRUE(equal_bits(more.result.lse, one.result.lse)) << n;
      EXPECT_TRUE(equal_bits(more.gradient, one.gradient)) << n;
    }
  }
}

TEST_P(AttentionProperties, bits_do_not_depend_on_batch_mates) {
  const std::vector<std::int64_t> lengths = {5, 1100, 12, 0, 33, 129, 64};
  Fused all(lengths, 3, 32);
  all.options.dropout_p = 0.2;
  all.run();
  for (std::int64_t b = 0; b < all.layout.batch(); ++b) {
    const std::int64_t n = all.layout.length(b),
                       first = all.layout.starts[static_cast<std::size_t>(b)];
    Fused alone({n}, 3, 32);
    alone.options.dropout_p = 0.2;
    alone.layout.samples = {b};
    alone.qkv = all.qkv.narrow(0, first, n).clone();
    alone.dout = all.dout.narrow(0, first, n).clone();
    alone.run();
    EXPECT_TRUE(equal_bits(alone.result.out, all.result.out.narrow(0, first, n))) << b;
    EXPECT_TRUE(equal_bits(alone.result.lse, all.result.lse.narrow(1, first, n))) << b;
    EXPECT_TRUE(equal_bits(alone.gradient, all.gradient.narrow(0, first, n))) << b;
  }
}

TEST_P(AttentionProperties, views_equal_copies) {
  Fused fused(short_lengths(), 2, 32);
  fused.run();
  ops::AttentionInput copies = fused.input();
  copies.q = copies.q.clone();
  copies.k = copies.k.clone();
  copies.v = copies.v.clone();
  const AttentionRun run = run_attention(copies, fused.options, fused.dout);
  EXPECT_TRUE(equal_bits(run.result.out, fused.result.out));
  EXPECT_TRUE(equal_bits(run.gradients.dq, fused.views().dq.clone()));
  EXPECT_TRUE(equal_bits(run.gradients.dk, fused.views().dk.clone()));
  EXPECT_TRUE(equal_bits(run.gradients.dv, fused.views().dv.clone()));
}

TEST_P(AttentionProperties, padded_equals_ragged) {
  const std::vector<std::int64_t> lengths = {7, 30, 1, 19};
  Fused fused(lengths, 2, 16);
  fused.run();
  for (const bool heads_first : {false, true}) {
    const Tensor q = Tensor::zeros({4, 2, 30, 16}), k = q.clone(), v = q.clone(), g = q.clone();
    const auto fill = [&](const Tensor& to, const Tensor& from) {
      for (std::int64_t b = 0; b < 4; ++b) {
        const std::int64_t n = lengths[static_cast<std::size_t>(b)];
        to.select(0, b).narrow(1, 0, n).copy_from(
            from.narrow(0, fused.layout.starts[static_cast<std::size_t>(b)], n).transpose(0, 1));
      }
    };
    const ops::AttentionInput ragged = fused.input();
    fill(q, ragged.q), fill(k, ragged.k), fill(v, ragged.v), fill(g, fused.dout);
    ops::AttentionInput input{q, k, v, nullptr, nullptr, true};
    Tensor dout = g;
    if (!heads_first) {
      for (Tensor* x : {&input.q, &input.k, &input.v, &dout}) *x = x->transpose(1, 2);
      input.heads_first = false;
    }
    ops::AttentionOptions options;
    options.mask = Mask::lengths(lengths);
    const AttentionRun run = run_attention(input, options, dout);
    for (std::int64_t b = 0; b < 4; ++b) {
      const std::int64_t n = lengths[static_cast<std::size_t>(b)];
      const std::int64_t first = fused.layout.starts[static_cast<std::size_t>(b)];
      const auto rows = [&](const Tensor& x) {
        return heads_first ? x.select(0, b).narrow(1, 0, n).transpose(0, 1)
                           : x.select(0, b).narrow(0, 0, n);
      };
      EXPECT_LE(scaled_difference(rows(run.result.out), fused.result.out.narrow(0, first, n)),
                1e-6);
      EXPECT_LE(scaled_difference(rows(run.gradients.dq), fused.views().dq.narrow(0, first, n)),
                3e-6);
      EXPECT_LE(scaled_difference(rows(run.gradients.dk), fused.views().dk.narrow(0, first, n)),
                3e-6);
      EXPECT_LE(scaled_difference(rows(run.gradients.dv), fused.views().dv.narrow(0, first, n)),
                3e-6);
    }
  }
}

TEST_P(AttentionProperties, nothing_is_read_or_written_beyond_the_buffers) {
  for (const bool at_end : {false, true})
    for (const std::int64_t d : {1, 5, 16, 33, 64})
      for (const std::int64_t n : {1, 3, 17, 64, 70, 130}) {
        const Shape shape{n, 2, d};
        const auto bytes = static_cast<std::size_t>(shape.numel()) * 4;
        std::vector<std::unique_ptr<Guarded>> memory;
        const auto make = [&](std::uint64_t seed) {
          memory.push_back(std::make_unique<Guarded>(bytes, at_end));
          Tensor tensor = memory.back()->tensor(shape);
          tensor.copy_from(random_tensor(shape, DType::kFloat32, seed));
          return tensor;
        };
        const RaggedLayout layout = RaggedLayout::from_lengths(std::vector<std::int64_t>{n});
        const ops::AttentionInput input{make(1), make(2), make(3), &layout, &layout};
        const Tensor dout = make(4);
        ops::AttentionOptions options;
        options.mask = Mask::causal();
        ops::AttentionResult result = ops::attention(input, options);
        const Tensor out = make(5);  // the forward results as inputs with guards
        out.copy_from(result.out);
        result.out = out;
        const Guarded lse(static_cast<std::size_t>(2 * n) * 4, at_end);
        const Tensor guarded_lse = lse.tensor({2, n});
        guarded_lse.copy_from(result.lse);
        result.lse = guarded_lse;
        const ops::AttentionGradients gradients{make(6), make(7), make(8)};
        ops::attention_backward(dout, input, result, options, gradients);
        for (const double x : values_of(gradients.dk)) ASSERT_TRUE(std::isfinite(x));
      }
}

TEST_P(AttentionProperties, hidden_data_changes_no_bit) {
  const std::int64_t b = 3, n = 70, s = 150, h = 2, d = 32;
  const std::vector<std::int64_t> lengths = {150, 0, 67};
  const auto make = [&](const Mask& mask,
                        const std::function<bool(std::int64_t, std::int64_t)>& hidden,
                        unsigned char byte) {
    ops::AttentionInput input{random_tensor({b, n, h, d}, DType::kFloat32, 1),
                              random_tensor({b, s, h, d}, DType::kFloat32, 2),
                              random_tensor({b, s, h, d}, DType::kFloat32, 3)};
    for (std::int64_t i = 0; i < b; ++i)
      for (std::int64_t j = 0; j < s; ++j)
        if (hidden(i, j))
          for (const Tensor& x : {input.k, input.v})
            std::memset(x.data<float>() + (i * s + j) * h * d, byte,
                        static_cast<std::size_t>(h * d) * 4);
    ops::AttentionOptions options;
    options.mask = mask;
    return run_attention(input, options, random_tensor({b, n, h, d}, DType::kFloat32, 4));
  };
  Tensor keep = Tensor::empty({b, 1, 1, s}, DType::kBool);
  for (std::int64_t i = 0; i < keep.numel(); ++i) keep.data<bool>()[i] = i % 7 != 3;
  struct Case {
    Mask mask;
    std::function<bool(std::int64_t, std::int64_t)> hidden;
  };
  const std::vector<Case> cases = {
      {Mask::lengths(lengths),
       [&](std::int64_t i, std::int64_t j) { return j >= lengths[static_cast<std::size_t>(i)]; }},
      {Mask::keep(keep), [&](std::int64_t i, std::int64_t j) { return (i * s + j) % 7 == 3; }},
      // Of 150 keys the 70 queries see from 80 - 10 on.
      {Mask::causal() & Mask::window(11), [](std::int64_t, std::int64_t j) { return j < 70; }},
  };
  for (const Case& c : cases) {
    const AttentionRun clean = make(c.mask, c.hidden, 0), dirty = make(c.mask, c.hidden, 0xFF);
    EXPECT_TRUE(equal_bits(clean.result.out, dirty.result.out)) << c.mask.str();
    EXPECT_TRUE(equal_bits(clean.result.lse, dirty.result.lse)) << c.mask.str();
    EXPECT_TRUE(equal_bits(clean.gradients.dq, dirty.gradients.dq)) << c.mask.str();
    EXPECT_TRUE(equal_bits(clean.gradients.dk, dirty.gradients.dk)) << c.mask.str();
    EXPECT_TRUE(equal_bits(clean.gradients.dv, dirty.gradients.dv)) << c.mask.str();
    for (const double x : values_of(dirty.gradients.dk))
      ASSERT_TRUE(std::isfinite(x)) << c.mask.str();
  }
}

// The future of a causal sequence is not finite: earlier rows must not notice, forward or backward.
TEST_P(AttentionProperties, future_data_changes_no_earlier_row) {
  const std::int64_t n = 100, d = 16;
  for (const float garbage : {kNan, kInf}) {
    Fused clean({n}, 1, d), dirty({n}, 1, d);
    clean.options.mask = dirty.options.mask = Mask::causal();
    clean.dout.narrow(0, 90, 10).fill(0);
    dirty.dout.narrow(0, 90, 10).fill(0);
    clean.run();
    for (int i = 0; i < 3; ++i) dirty.qkv.select(1, i).narrow(0, 95, 5).fill(garbage);
    dirty.run();
    EXPECT_TRUE(equal_bits(dirty.result.out.narrow(0, 0, 95), clean.result.out.narrow(0, 0, 95)));
    EXPECT_TRUE(equal_bits(dirty.views().dq.narrow(0, 0, 95).clone(),
                           clean.views().dq.narrow(0, 0, 95).clone()));
    EXPECT_TRUE(std::isnan(
        values_of(dirty.result.out)[static_cast<std::size_t>(99 * d)]));  // and is not hidden
  }
}

TEST_P(AttentionProperties, long_sequences_equal_the_reference) {
  for (const auto& [n, s] :
       std::vector<std::pair<std::int64_t, std::int64_t>>{{700, 1100}, {1, 2000}, {1300, 40}}) {
    const RaggedLayout queries = RaggedLayout::from_lengths(std::vector<std::int64_t>{n});
    const RaggedLayout keys = RaggedLayout::from_lengths(std::vector<std::int64_t>{s});
    const ops::AttentionInput input{random_tensor({n, 2, 24}, DType::kFloat32, 1),
                                    random_tensor({s, 1, 24}, DType::kFloat32, 2),
                                    random_tensor({s, 1, 24}, DType::kFloat32, 3), &queries, &keys};
    const Tensor dout = random_tensor({n, 2, 24}, DType::kFloat32, 4);
    for (const Mask& mask : {Mask(), Mask::causal(), Mask::causal() & Mask::window(300)}) {
      ops::AttentionOptions options;
      options.mask = mask;
      SCOPED_TRACE(fmt::format("N {} S {} {}", n, s, mask.str()));
      const AttentionRun got = run_attention(input, options, dout);
      options.backend = ops::AttentionBackend::kNaive;
      const AttentionRun expected = run_attention(input, options, dout);
      EXPECT_LE(scaled_difference(got.result.out, expected.result.out), 2e-6);
      EXPECT_LE(scaled_difference(got.result.lse, expected.result.lse), 2e-6);
      EXPECT_LE(scaled_difference(got.gradients.dq, expected.gradients.dq), 5e-6);
      EXPECT_LE(scaled_difference(got.gradients.dk, expected.gradients.dk), 5e-6);
      EXPECT_LE(scaled_difference(got.gradients.dv, expected.gradients.dv), 5e-6);
    }
  }
}

TEST_P(AttentionProperties, memory_is_linear_in_the_length) {
  for (const std::int64_t n : {2048, 4096}) {
    Fused fused({n}, 1, 16);
    reset_memory_peaks();
    const std::size_t before = memory_use().live;
    fused.run();
    // out, lse, gradients, and the copies and shares of dq that the kernels make.
    EXPECT_LT(memory_use().peak - before, static_cast<std::size_t>(n * 16 * 4 * 24)) << n;
  }
}

// What is held beside inputs and outputs is the same for 65536 tokens, with as many heads. On one
// thread: with several, chance says how many of them come to hold scratch memory.
TEST_P(AttentionProperties, working_memory_does_not_grow_with_the_length) {
  const int threads = num_threads();
  set_num_threads(1);
  std::vector<std::size_t> peaks;
  for (const std::int64_t n : {4500, 4500, 9000}) {
    Fused fused({n}, 1, 64);
    fused.options.mask = Mask::causal() & Mask::window(200);
    reset_memory_peaks();
    fused.run();
    peaks.push_back(memory_use(MemoryKind::kWorkspace).peak);
  }
  set_num_threads(threads);
  EXPECT_LE(peaks[2], peaks[1] + 4096);
  EXPECT_LT(peaks[2], std::size_t{32} << 20);
}

INSTANTIATE_TEST_SUITE_P(Implementations, AttentionProperties, ::testing::ValuesIn([] {
                           auto names = kernels::runnable_implementations();
                           names.pop_back();  // the reference
                           return names;
                         }()),
                         [](const auto& param) { return std::string(param.param); });

TEST(AttentionDropout, numbers_differ_by_sample_head_query_and_step) {
  // Weights of 1 / n after softmax: what is left of them shows the numbers themselves.
  const std::int64_t n = 64;
  const auto kept = [&](std::int64_t sample, std::uint32_t step) {
    Fused fused({n}, 2, 8);
    fused.qkv.fill(0);
    fused.layout.samples = {sample};
    fused.options.dropout_p = 0.5;
    fused.options.dropout_key = {99, step};
    fused.options.return_weights = true;
    return values_of(ops::attention(fused.input(), fused.options).weights);
  };
  const std::vector<double> base = kept(0, 0);
  EXPECT_EQ(base, kept(0, 0));
  const auto agreement = [&](const std::vector<double>& other) {
    double equal = 0;
    for (std::size_t i = 0; i < base.size(); ++i) equal += base[i] == other[i];
    return equal / static_cast<double>(base.size());
  };
  EXPECT_NEAR(agreement(kept(1, 0)), 0.5, 0.03);
  EXPECT_NEAR(agreement(kept(0, 1)), 0.5, 0.03);
  std::vector<double> shifted(base.begin() + n, base.end());  // next query; then next head
  shifted.resize(base.size());
  EXPECT_NEAR(agreement(shifted), 0.5, 0.03);
  double sum = 0;
  for (const double w : base) sum += w;
  EXPECT_NEAR(sum / static_cast<double>(2 * n), 1, 0.05);
}

TEST(AttentionExplain, reasons) {
  Tiny p(2, {1, 2, 3});
  const auto first = ops::explain_attention(p.input(), p.options);
  EXPECT_EQ(first.back().name.rfind("flash-", 0), 0u);
  EXPECT_TRUE(first.back().refusal.empty());
  for (std::size_t i = 0; i + 1 < first.size(); ++i) EXPECT_FALSE(first[i].refusal.empty());
  p.options.return_weights = true;
  const auto weights = ops::explain_attention(p.input(), p.options);
  EXPECT_EQ(weights.back().name, "naive");
  EXPECT_NE(weights.front().refusal.find("weights"), std::string::npos);
  p.options.backend = ops::AttentionBackend::kFlash;
  try {
    ops::attention(p.input(), p.options);
    FAIL() << "flash never forms the weights";
  } catch (const UnsupportedError& error) {
    EXPECT_NE(std::string(error.what()).find("weights"), std::string::npos) << error.what();
  }
}

TEST(AttentionTypes, fp64_is_kept) {
  const Tensor q = random_tensor({1, 40, 2, 16}, DType::kFloat64, 1);
  const Tensor k = random_tensor({1, 40, 2, 16}, DType::kFloat64, 2);
  const AttentionRun wide = run_attention({q, k, k}, {}, q);
  EXPECT_EQ(wide.result.out.dtype(), DType::kFloat64);
  EXPECT_EQ(wide.result.lse.dtype(), DType::kFloat64);
  const Tensor qf = q.to(DType::kFloat32), kf = k.to(DType::kFloat32);
  const AttentionRun narrow = run_attention({qf, kf, kf}, {}, qf);
  EXPECT_EQ(narrow.result.lse.dtype(), DType::kFloat32);
  const double difference = scaled_difference(narrow.result.out, wide.result.out);
  EXPECT_LT(difference, 1e-5);
  EXPECT_GT(difference, 1e-9);  // else the fp64 path computed in fp32
}

TEST_P(AttentionProperties, empty_batches_are_fine) {
  for (const std::vector<std::int64_t>& lengths : {std::vector<std::int64_t>{}, {0}, {0, 0, 0}}) {
    Fused fused(lengths, 2, 16);
    fused.options.mask = Mask::causal();
    fused.run();
    EXPECT_EQ(fused.result.out.numel(), 0);
    EXPECT_EQ(fused.result.lse.numel(), 0);
  }
}

// Scores in the thousands: one key takes all the weight, nothing overflows.
TEST_P(AttentionProperties, large_scores_stay_finite) {
  Fused fused({90}, 1, 32);
  for (std::int64_t i = 0; i < fused.qkv.numel(); ++i) fused.qkv.data<float>()[i] *= 60;
  fused.run();
  ops::AttentionOptions options;
  options.backend = ops::AttentionBackend::kNaive;
  const Tensor expected = ops::attention(fused.input(), options).out;
  EXPECT_LE(relative_difference(fused.result.out, expected), 2e-3);
  for (const double x : values_of(fused.gradient)) ASSERT_TRUE(std::isfinite(x));
}

TEST_P(AttentionProperties, windows_of_any_width_are_no_limit) {
  const Tensor q = random_tensor({1, 5, 1, 8}, DType::kFloat32, 1),
               k = random_tensor({1, 9, 1, 8}, DType::kFloat32, 2);
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  const Tensor open = ops::attention({q, k, k}, {}).out;
  for (const Mask& wide : {Mask::window(kMax), Mask::window(kMax, kMax), Mask::window(-1, kMax),
                           Mask::window(kMax, -1), Mask::window(14)}) {
    ops::AttentionOptions options;
    options.mask = wide;
    EXPECT_LE(scaled_difference(ops::attention({q, k, k}, options).out, open), 1e-6) << wide.str();
  }
}

// Rows that look at one key alone have next to no gradient. lse is rounded: with it as the only
// divisor the weights of scores in the thousands sum to 1.0001, and that share of dp would appear
// as gradient.
TEST_P(AttentionProperties, saturated_rows_have_next_to_no_gradient) {
  for (const std::int64_t keys : {2, 7, 40}) {
    for (const double p : {0.0, 0.25}) {
      const Tensor q = random_tensor({1, 8, 1, 300}, DType::kFloat32, 1),
                   k = random_tensor({1, keys, 1, 300}, DType::kFloat32, 2),
                   v = random_tensor({1, keys, 1, 300}, DType::kFloat32, 3),
                   dout = random_tensor({1, 8, 1, 300}, DType::kFloat32, 4);
      for (std::int64_t i = 0; i < q.numel(); ++i) q.data<float>()[i] *= 30;
      ops::AttentionOptions options;
      options.scale = -2.5;
      options.dropout_p = p;
      const AttentionRun flash = run_attention({q, k, v}, options, dout);
      options.backend = ops::AttentionBackend::kNaive;
      const AttentionRun exact = run_attention({q, k, v}, options, dout);
      EXPECT_LE(scaled_difference(flash.gradients.dq, exact.gradients.dq), 1e-3) << keys;
      EXPECT_LE(scaled_difference(flash.gradients.dk, exact.gradients.dk), 1e-3) << keys;
    }
  }
}

TEST(AttentionChecks, layouts_put_together_by_hand_are_not_trusted) {
  const Tensor x = Tensor::zeros({4, 2, 8});
  for (const std::vector<std::int32_t>& starts :
       std::vector<std::vector<std::int32_t>>{{}, {4}, {1, 4}, {0, 6, 4}, {0, -2, 4}, {-4, 0, 4}}) {
    RaggedLayout layout;
    layout.starts = starts;
    EXPECT_THROW(ops::attention({x, x, x, &layout, &layout}, {}), ShapeError);
    EXPECT_THROW(ops::linear_attention({x, x, x, &layout, &layout}, false), ShapeError);
  }
  RaggedLayout layout;
  layout.starts = {0, 1, 4};
  EXPECT_EQ(ops::attention({x, x, x, &layout, &layout}, {}).out.shape(), x.shape());
  layout.samples = {1};
  EXPECT_THROW(ops::attention({x, x, x, &layout, &layout}, {}), ShapeError);
}

TEST(AttentionChecks, messages_name_what_came) {
  const Tensor q = Tensor::zeros({1, 4, 2, 8}), k = Tensor::zeros({1, 12, 2, 8}),
               v = Tensor::zeros({1, 11, 2, 8});
  try {
    ops::attention({q, k, v}, {});
    FAIL();
  } catch (const ShapeError& error) {
    EXPECT_STREQ(error.what(), "[attention] expected k and v of equal length, got k 12 and v 11");
  }
  EXPECT_THROW(ops::attention({Tensor(), k, k}, {}), ShapeError);
  EXPECT_THROW(ops::attention({q.to(DType::kFloat64), k, k}, {}), ShapeError);
  EXPECT_THROW(ops::attention({q, k.transpose(2, 3), k}, {}), ShapeError);
  EXPECT_THROW(ops::attention({Tensor::zeros({4, 2, 8}), k, k}, {}), ShapeError);
  EXPECT_THROW(ops::attention({Tensor::zeros({2, 4, 2, 8}), k, k}, {}), ShapeError);
  ops::AttentionOptions options;
  options.scale = std::nan("");
  EXPECT_THROW(ops::attention({q, k, k}, options), ArgumentError);
  options.scale = 1e300;  // infinite as float32
  EXPECT_THROW(ops::attention({q, k, k}, options), ArgumentError);
  const RaggedLayout layout = RaggedLayout::from_lengths(std::vector<std::int64_t>{3});
  const Tensor x = Tensor::zeros({4, 2, 8});
  EXPECT_THROW(ops::attention({x, x, x, &layout, &layout}, {}), ShapeError);
  EXPECT_THROW(ops::attention({x, x, x, &layout, nullptr}, {}), ShapeError);
}
