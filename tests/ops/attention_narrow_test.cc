// bf16 and fp16 storage: what is stored in 16 bits is exact input, arithmetic is fp32.
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include "qkv/threads.h"

#include "attention_support.h"
#include "base/cpu.h"
#include "kernels/attention_pairs.h"
#include "kernels/registry.h"

namespace qkv::inline v0::kernels {
namespace generic {
extern const FlashTable kFlashTable, kEmulatedTable;
}
#if defined(__x86_64__)
namespace avx512 {
extern const FlashTable kFlashTable;
}
namespace avx512_bf16 {
extern const FlashTable kEmulatedTable;
}
#endif
}  // namespace qkv::inline v0::kernels

using namespace qkv;
using namespace qkv::testing;

namespace {

struct Case {
  std::string implementation;
  DType dtype;
  bool products_of_bf16 = false;                // weights are rounded too
  const kernels::FlashTable* tiles = nullptr;   // emulated tiles of AMX
  const kernels::FlashTable* others = nullptr;  // what runs beside them
};

// The forms of attention over 16-bit storage that run here: widened to fp32, and products of bf16.
std::vector<Case> all_cases() {
  std::vector<Case> cases;
  auto names = kernels::runnable_implementations();
  names.pop_back();  // the reference
  for (const char* name : names)
    for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) cases.push_back({name, dtype});
  for (const char* name : kernels::runnable_bf16_implementations())
    cases.push_back({name, DType::kBFloat16, true});
#if defined(__x86_64__)
  cases.push_back({"emulated_amx_generic", DType::kBFloat16, true,
                   &kernels::generic::kEmulatedTable, &kernels::generic::kFlashTable});
  if (active_isa() >= Isa::kAvx512Bf16)
    cases.push_back({"emulated_amx_avx512_bf16", DType::kBFloat16, true,
                     &kernels::avx512_bf16::kEmulatedTable, &kernels::avx512::kFlashTable});
#endif
  return cases;
}

class AttentionNarrow : public ::testing::TestWithParam<Case> {
 protected:
  AttentionNarrow() {
    const Case& c = GetParam();
    if (c.tiles)
      tiles_.emplace(*c.tiles, *c.others);
    else
      scope_.emplace(c.implementation.c_str());
  }
  DType dtype() const { return GetParam().dtype; }
  // Half a unit in the last place of numbers of order 1, and the rounding of fp32.
  double rounding() const { return dtype() == DType::kBFloat16 ? 1.0 / 256 : 1.0 / 2048; }
  // Products of bf16 round weights and gradients of scores once more.
  double product_rounding() const {
    return GetParam().products_of_bf16 ? 2 * rounding() : rounding();
  }
  std::optional<kernels::ImplementationScope> scope_;
  std::optional<kernels::PairTableScope> tiles_;

  ops::AttentionInput input(std::int64_t n, std::int64_t s, std::int64_t heads,
                            std::int64_t kv_heads, std::int64_t d, std::int64_t dv) const {
    return {random_tensor({2, n, heads, d}, dtype(), 1),
            random_tensor({2, s, kv_heads, d}, dtype(), 2),
            random_tensor({2, s, kv_heads, dv}, dtype(), 3)};
  }
};

ops::AttentionInput widened(const ops::AttentionInput& in) {
  ops::AttentionInput wide = in;
  for (Tensor* x : {&wide.q, &wide.k, &wide.v}) *x = x->to(DType::kFloat32);
  return wide;
}

std::vector<ops::AttentionOptions> kinds_of_options(std::int64_t heads, std::int64_t n,
                                                    std::int64_t s) {
  std::vector<ops::AttentionOptions> all(5);
  all[1].mask = Mask::causal() & Mask::alibi(alibi_slopes(heads)) & Mask::lengths({s, s / 2});
  all[2].mask = Mask::additive(random_tensor({2, heads, n, s}, DType::kFloat32, 8)) &
                Mask::window_with_globals(9, 3, {1});
  all[3].softcap = 2;
  all[3].scale = 0.4;
  all[4].dropout_p = 0.3;
  all[4].dropout_key = {5, 6};
  return all;
}

}  // namespace

// The same numbers in fp32 give the same result up to the rounding of what is stored.
TEST_P(AttentionNarrow, equals_fp32_on_the_same_numbers) {
  struct Shape {
    std::int64_t n, s, heads, kv_heads, d, dv;
  };
  for (const Shape& c :
       {Shape{1, 1, 1, 1, 1, 1}, Shape{17, 17, 4, 2, 16, 16}, Shape{70, 150, 6, 2, 33, 20},
        Shape{3, 300, 4, 1, 40, 40}, Shape{30, 40, 2, 2, 264, 136}, Shape{70, 4300, 1, 1, 4, 3}}) {
    const ops::AttentionInput in = input(c.n, c.s, c.heads, c.kv_heads, c.d, c.dv);
    const ops::AttentionInput wide = widened(in);
    const Tensor dout = random_tensor({2, c.n, c.heads, c.dv}, dtype(), 4);
    for (const ops::AttentionOptions& options : kinds_of_options(c.heads, c.n, c.s)) {
      SCOPED_TRACE(fmt::format("N {} S {} {}", c.n, c.s, options.mask.str()));
      const AttentionRun got = run_attention(in, options, dout);
      EXPECT_EQ(got.result.out.dtype(), dtype());
      EXPECT_EQ(got.result.lse.dtype(), DType::kFloat32);
      const ops::AttentionResult exact = ops::attention(wide, options);
      EXPECT_LE(scaled_difference(got.result.lse, exact.lse), 2e-6);
      EXPECT_LE(scaled_difference(got.result.out, exact.out), product_rounding());
      // The gradients of the same out and lse.
      const AttentionRun right = [&] {
        AttentionRun run;
        run.gradients = {Tensor::empty(wide.q.shape()), Tensor::empty(wide.k.shape()),
                         Tensor::empty(wide.v.shape())};
        ops::attention_backward(dout.to(DType::kFloat32), wide,
                                {got.result.out.to(DType::kFloat32), got.result.lse, Tensor()},
                                options, run.gradients);
        return run;
      }();
      EXPECT_LE(scaled_difference(got.gradients.dq, right.gradients.dq), product_rounding());
      EXPECT_LE(scaled_difference(got.gradients.dk, right.gradients.dk), product_rounding());
      EXPECT_LE(scaled_difference(got.gradients.dv, right.gradients.dv), product_rounding());
    }
  }
}

TEST_P(AttentionNarrow, agrees_with_the_reference_in_double) {
  const ops::AttentionInput in = input(40, 60, 4, 2, 16, 24);
  const Tensor dout = random_tensor({2, 40, 4, 24}, dtype(), 4);
  ops::AttentionOptions options;
  options.mask = Mask::causal();
  const AttentionRun got = run_attention(in, options, dout);
  options.backend = ops::AttentionBackend::kNaive;
  const AttentionRun right = run_attention(in, options, dout);
  EXPECT_LE(scaled_difference(got.result.out, right.result.out), 2 * rounding());
  EXPECT_LE(scaled_difference(got.result.lse, right.result.lse), 2e-6);
  EXPECT_LE(scaled_difference(got.gradients.dq, right.gradients.dq), 2 * rounding());
  EXPECT_LE(scaled_difference(got.gradients.dk, right.gradients.dk), 2 * rounding());
  EXPECT_LE(scaled_difference(got.gradients.dv, right.gradients.dv), 2 * rounding());
}

TEST_P(AttentionNarrow, gives_the_gradient_of_a_bias) {
  const ops::AttentionInput in = input(30, 40, 4, 2, 16, 16), wide = widened(in);
  const Tensor dout = random_tensor({2, 30, 4, 16}, dtype(), 4);
  for (const Shape& shape : {Shape{30, 40}, Shape{2, 4, 30, 40}, Shape{1, 4, 1, 40}, Shape{1, 1}}) {
    AttentionRun run = run_attention(in, {}, dout);
    run.gradients.dbias = Tensor::empty(shape);
    ops::attention_backward(dout, in, run.result, {}, run.gradients);
    ops::AttentionGradients right{Tensor::empty(wide.q.shape()), Tensor::empty(wide.k.shape()),
                                  Tensor::empty(wide.v.shape()), Tensor::empty(shape)};
    ops::attention_backward(dout.to(DType::kFloat32), wide,
                            {run.result.out.to(DType::kFloat32), run.result.lse, Tensor()}, {},
                            right);
    // Of shape [1, 1] it is the sum of all gradients of scores: 2400 numbers of order 1 that sum to
    // 0.
    const double cancelled = shape.numel() == 1 ? 5 : 1;
    EXPECT_LE(scaled_difference(run.gradients.dbias, right.dbias), 1e-6 * cancelled) << shape.str();
  }
}

TEST_P(AttentionNarrow, takes_the_gradient_of_lse) {
  for (const std::int64_t keys : {40, 150}) {
    const ops::AttentionInput in = input(30, keys, 4, 2, 16, 16), wide = widened(in);
    ops::AttentionOptions options;
    options.mask = Mask::lengths({keys, 0});  // the second sequence has no keys
    const Tensor dout = random_tensor({2, 30, 4, 16}, dtype(), 4);
    const Tensor dlse = random_tensor({2, 4, 30}, DType::kFloat32, 5);
    dlse.select(0, 1).fill(kNan);
    AttentionRun run = run_attention(in, options, dout);
    const ops::AttentionGradients right{Tensor::empty(wide.q.shape()),
                                        Tensor::empty(wide.k.shape()),
                                        Tensor::empty(wide.v.shape())};
    ops::attention_backward(dout.to(DType::kFloat32), dlse, wide,
                            {run.result.out.to(DType::kFloat32), run.result.lse, Tensor()}, options,
                            right);
    EXPECT_GT(scaled_difference(run.gradients.dq, right.dq), 0.02);
    ops::attention_backward(dout, dlse, in, run.result, options, run.gradients);
    EXPECT_LE(scaled_difference(run.gradients.dq, right.dq), product_rounding());
    EXPECT_LE(scaled_difference(run.gradients.dk, right.dk), product_rounding());
    EXPECT_LE(scaled_difference(run.gradients.dv, right.dv), product_rounding());
    EXPECT_THROW(ops::attention_backward(dout, dout, in, run.result, options, run.gradients),
                 ShapeError);
  }
}

TEST_P(AttentionNarrow, bits_do_not_depend_on_threads_nor_batch_mates) {
  for (const std::int64_t n : {2, 50}) {
    const ops::AttentionInput in = input(n, 1200, 4, 2, 16, 16);
    const Tensor dout = random_tensor({2, n, 4, 16}, dtype(), 4);
    const int before = num_threads();
    set_num_threads(1);
    const AttentionRun one = run_attention(in, {}, dout);
    set_num_threads(3);
    const AttentionRun more = run_attention(in, {}, dout);
    ops::AttentionInput second = in;
    for (Tensor* x : {&second.q, &second.k, &second.v}) *x = x->narrow(0, 1, 1).clone();
    const AttentionRun alone = run_attention(second, {}, dout.narrow(0, 1, 1).clone());
    set_num_threads(before);
    EXPECT_TRUE(equal_bits(more.result.out, one.result.out));
    EXPECT_TRUE(equal_bits(more.gradients.dq, one.gradients.dq));
    EXPECT_TRUE(equal_bits(more.gradients.dk, one.gradients.dk));
    EXPECT_TRUE(equal_bits(alone.result.out, one.result.out.narrow(0, 1, 1)));
    EXPECT_TRUE(equal_bits(alone.gradients.dq, one.gradients.dq.narrow(0, 1, 1)));
    EXPECT_TRUE(equal_bits(alone.gradients.dv, one.gradients.dv.narrow(0, 1, 1)));
  }
}

TEST_P(AttentionNarrow, hidden_data_changes_no_bit) {
  for (const std::int64_t n : {2, 40}) {
    const ops::AttentionInput in = input(n, 300, 2, 1, 16, 16);
    const Tensor dout = random_tensor({2, n, 2, 16}, dtype(), 4);
    ops::AttentionOptions options;
    options.mask = Mask::lengths({130, 0});
    const AttentionRun clean = run_attention(in, options, dout);
    for (const Tensor& x : {in.k, in.v})
      for (std::int64_t b = 0; b < 2; ++b) {
        const std::int64_t first = b == 0 ? 130 : 0;
        std::memset(static_cast<std::uint16_t*>(x.raw()) + (b * 300 + first) * 16, 0xFF,
                    static_cast<std::size_t>((300 - first) * 16 * 2));
      }
    const AttentionRun dirty = run_attention(in, options, dout);
    EXPECT_TRUE(equal_bits(dirty.result.out, clean.result.out));
    EXPECT_TRUE(equal_bits(dirty.gradients.dq, clean.gradients.dq));
    EXPECT_TRUE(equal_bits(dirty.gradients.dk, clean.gradients.dk));
    EXPECT_TRUE(equal_bits(dirty.gradients.dv, clean.gradients.dv));
    for (const double x : values_of(dirty.result.out.select(0, 1).to(DType::kFloat32)))
      EXPECT_EQ(x, 0);
  }
}

// Keys that no query sees and queries that see no key, among others that do, under a band: tiles
// are partly hidden, and what they hide is not finite.
TEST_P(AttentionNarrow, what_a_mask_hides_changes_no_bit) {
  constexpr std::int64_t kN = 150;
  const std::vector<std::int64_t> hidden = {0, 3, 64, 65, 66, 127, 128, 149};
  const Tensor keep = Tensor::zeros({kN, kN}, DType::kUInt8);
  keep.fill(1);
  for (const std::int64_t i : hidden) {
    keep.narrow(0, i, 1).fill(0);
    keep.narrow(1, i, 1).fill(0);
  }
  for (const bool causal : {false, true}) {
    ops::AttentionOptions options;
    options.mask = causal ? Mask::keep(keep) & Mask::causal() & Mask::window(70) : Mask::keep(keep);
    const ops::AttentionInput in = input(kN, kN, 2, 1, 20, 12);
    const Tensor dout = random_tensor({2, kN, 2, 12}, dtype(), 4);
    const AttentionRun clean = run_attention(in, options, dout);
    for (const float poison : {kNan, kInf, -kInf, 3e38f}) {
      for (const Tensor& x : {in.q, in.k, in.v, dout})
        for (const std::int64_t i : hidden) x.narrow(1, i, 1).fill(poison);
      const AttentionRun dirty = run_attention(in, options, dout);
      EXPECT_TRUE(equal_bits(dirty.result.out, clean.result.out)) << poison;
      EXPECT_TRUE(equal_bits(dirty.result.lse, clean.result.lse)) << poison;
      EXPECT_TRUE(equal_bits(dirty.gradients.dq, clean.gradients.dq)) << poison;
      EXPECT_TRUE(equal_bits(dirty.gradients.dk, clean.gradients.dk)) << poison;
      EXPECT_TRUE(equal_bits(dirty.gradients.dv, clean.gradients.dv)) << poison;
    }
    for (const std::int64_t i : hidden)
      for (const Tensor& x : {clean.result.out, clean.gradients.dq})
        for (const double value : values_of(x.narrow(1, i, 1).to(DType::kFloat32)))
          EXPECT_EQ(value, 0) << i;
  }
}

// A NaN that is seen is passed on, to those that see it alone.
TEST_P(AttentionNarrow, what_is_seen_is_passed_on) {
  const ops::AttentionInput in = input(100, 100, 1, 1, 16, 16);
  in.v.narrow(1, 70, 1).fill(kNan);
  ops::AttentionOptions options;
  options.mask = Mask::causal();
  const Tensor out = ops::attention(in, options).out;
  for (std::int64_t i = 0; i < 100; ++i)
    for (const double value : values_of(out.narrow(1, i, 1).to(DType::kFloat32)))
      EXPECT_EQ(std::isnan(value), i >= 70) << i;
}

// Views of one projection of a ragged batch, several runs of queries, and heads of odd size.
TEST_P(AttentionNarrow, views_equal_copies) {
  const std::vector<std::int64_t> lengths = {3, 1050, 0, 70};
  const RaggedLayout layout = RaggedLayout::from_lengths(lengths);
  const Tensor qkv = random_tensor({layout.tokens(), 3, 2, 5}, dtype(), 1);
  const Tensor dout = random_tensor({layout.tokens(), 2, 5}, dtype(), 2);
  ops::AttentionInput views{qkv.select(1, 0), qkv.select(1, 1), qkv.select(1, 2), &layout, &layout};
  ops::AttentionInput copies = views;
  for (Tensor* x : {&copies.q, &copies.k, &copies.v}) *x = x->contiguous();
  ops::AttentionOptions options;
  options.mask = Mask::causal() & Mask::window(200);
  const AttentionRun a = run_attention(views, options, dout);
  const AttentionRun b = run_attention(copies, options, dout);
  EXPECT_TRUE(equal_bits(a.result.out, b.result.out));
  EXPECT_TRUE(equal_bits(a.gradients.dq, b.gradients.dq));
  EXPECT_TRUE(equal_bits(a.gradients.dk, b.gradients.dk));
  EXPECT_TRUE(equal_bits(a.gradients.dv, b.gradients.dv));
  const AttentionRun wide = run_attention(widened(copies), options, dout.to(DType::kFloat32));
  EXPECT_LE(scaled_difference(a.gradients.dq, wide.gradients.dq), 2 * product_rounding());
  EXPECT_LE(scaled_difference(a.gradients.dk, wide.gradients.dk), 2 * product_rounding());
  EXPECT_LE(scaled_difference(a.gradients.dv, wide.gradients.dv), 2 * product_rounding());
}

// Buffers that end at a page which must not be touched.
TEST_P(AttentionNarrow, nothing_is_read_or_written_beyond_the_buffers) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  for (const std::int64_t d : {1, 5, 16, 33})
    for (const auto& [n, s] : {std::pair{19, 19}, std::pair{1, 270}}) {
      std::vector<std::pair<char*, std::size_t>> memory;
      const auto guarded = [&](std::int64_t tokens, std::uint64_t seed) {
        const std::size_t bytes = static_cast<std::size_t>(tokens * d) * 2;
        const std::size_t pages = (bytes + page - 1) / page * page;
        char* base = static_cast<char*>(mmap(nullptr, pages + page, PROT_READ | PROT_WRITE,
                                             MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        mprotect(base + pages, page, PROT_NONE);
        memory.emplace_back(base, pages + page);
        Tensor x = Tensor::wrap(base + pages - bytes, {1, tokens, 1, d}, dtype());
        x.copy_from(random_tensor({1, tokens, 1, d}, dtype(), seed));
        return x;
      };
      const ops::AttentionInput in{guarded(n, 1), guarded(s, 2), guarded(s, 3)};
      const ops::AttentionResult result = ops::attention(in, {});
      const ops::AttentionGradients gradients{guarded(n, 4), guarded(s, 5), guarded(s, 6)};
      ops::attention_backward(guarded(n, 7), in, result, {}, gradients);
      for (const double x : values_of(gradients.dk.to(DType::kFloat32)))
        ASSERT_TRUE(std::isfinite(x));
      for (const auto& [base, bytes] : memory) munmap(base, bytes);
    }
}

// NaN, infinities, denormals and overflow pass through storage as they should.
TEST_P(AttentionNarrow, special_values_are_kept) {
  const std::vector<float> values = {0,     -0.0f,  1,         -2.5f,      kNan,     kInf,
                                     -kInf, 1e-7f,  6.1e-5f,   -5.96e-8f,  65504,    70000,
                                     3e38f, 1e-40f, 0.333333f, 1.0009766f, 1.00098f, -1e-3f};
  for (const float value : values) {
    // Products of bf16 take denormal numbers as zero.
    if (GetParam().products_of_bf16 && value != 0 && std::fabs(value) < 0x1p-126f) continue;
    const Tensor v = Tensor::from<float>({value}, {1, 1, 1, 1}).to(dtype());
    const Tensor q = Tensor::from<float>({0}, {1, 1, 1, 1}).to(dtype());
    const Tensor out = ops::attention({q, q, v}, {}).out;
    const float got = out.to(DType::kFloat32).data<float>()[0];
    const float right = v.to(DType::kFloat32).data<float>()[0];
    if (std::isnan(right))
      EXPECT_TRUE(std::isnan(got)) << value;
    else
      EXPECT_EQ(got, right) << value;
  }
}

INSTANTIATE_TEST_SUITE_P(Implementations, AttentionNarrow, ::testing::ValuesIn(all_cases()),
                         [](const auto& param) {
                           return param.param.implementation + "_" + dtype_name(param.param.dtype);
                         });

TEST(AttentionNarrowTypes, are_not_mixed) {
  const Tensor x = Tensor::zeros({1, 4, 2, 8}, DType::kBFloat16);
  EXPECT_THROW(ops::attention({x, x.to(DType::kFloat16), x}, {}), ShapeError);
  const RaggedLayout layout = RaggedLayout::from_lengths(std::vector<std::int64_t>{4});
  const Tensor ragged = Tensor::zeros({4, 2, 8}, DType::kBFloat16);
  EXPECT_THROW(ops::linear_attention({ragged, ragged, ragged, &layout, &layout}, false),
               ShapeError);
  ops::AttentionOptions options;
  options.return_weights = true;
  EXPECT_EQ(ops::attention({x, x, x}, options).weights.dtype(), DType::kFloat32);
}

// Dot products are the choice where the processor's vendor makes them fast, and can be forced.
TEST(AttentionNarrowTypes, the_choice_among_products_of_bf16_has_a_reason) {
  const Tensor x = Tensor::zeros({1, 40, 2, 8}, DType::kBFloat16);
  const auto choices = ops::explain_attention({x, x, x}, {});
  for (const auto& c : choices) {
    if (c.name == "flash-amx" && active_isa() < Isa::kAmx) {
      EXPECT_NE(c.refusal.find("needs amx"), std::string::npos);
    }
    if (c.name == "flash-avx512_bf16" && active_isa() >= Isa::kAvx512Bf16) {
      EXPECT_EQ(c.refusal, kernels::dot_product_refusal());
    }
  }
  for (const char* name : kernels::runnable_bf16_implementations()) {
    const kernels::ImplementationScope scope(name);
    EXPECT_EQ(ops::explain_attention({x, x, x}, {}).back().name, std::string("flash-") + name);
    // Other types do not know it.
    const Tensor y = x.to(DType::kFloat16);
    EXPECT_EQ(ops::explain_attention({y, y, y}, {}).back().name, "flash-avx512");
  }
}
