// Attention: long sequences by head size and length, short texts in ragged batches, or given
// shapes.
#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "qkv/attention.h"
#include "qkv/layout.h"

#include "base/check.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/random.h"
#include "bench/inputs.h"
#include "bench/suites.h"
#include "kernels/registry.h"

namespace qkv::inline v0::bench {
namespace {

struct AttentionCase {
  std::string name;
  std::int64_t heads = 8, head_size = 64;
  std::vector<std::int64_t> lengths;
  bool causal = false;
  DType dtype = DType::kFloat32;
  const char* products = nullptr;  // bf16: the implementation that is asked for; null: the choice
  std::string series;              // empty: not in the plot
  double x = 0;
};

// Query-key pairs that are visible, over all sequences.
double visible_pairs(const AttentionCase& c) {
  double pairs = 0;
  for (const std::int64_t n : c.lengths) {
    const double length = static_cast<double>(n);
    pairs += c.causal ? length * (length + 1) / 2 : length * length;
  }
  return pairs;
}

// Inputs as a training step has them: views of one projection [T, 3 H D].
struct AttentionProblem {
  explicit AttentionProblem(const AttentionCase& c, std::uint64_t seed)
      : layout(RaggedLayout::from_lengths(c.lengths)) {
    const std::int64_t tokens = layout.tokens();
    const Tensor qkv = random_tensor({tokens, 3, c.heads, c.head_size}, seed, 1).to(c.dtype);
    const Tensor dqkv = Tensor::zeros({tokens, 3, c.heads, c.head_size}, c.dtype);
    input = {qkv.select(1, 0), qkv.select(1, 1), qkv.select(1, 2), &layout, &layout, false};
    gradients = {dqkv.select(1, 0), dqkv.select(1, 1), dqkv.select(1, 2)};
    dout = random_tensor({tokens, c.heads, c.head_size}, seed, 2).to(c.dtype);
    if (c.causal) options.mask = Mask::causal();
  }
  AttentionProblem(const AttentionProblem&) = delete;
  AttentionProblem& operator=(const AttentionProblem&) = delete;

  RaggedLayout layout;
  ops::AttentionInput input;
  ops::AttentionGradients gradients;
  ops::AttentionOptions options;
  Tensor dout;
};

Record attention_record(const AttentionCase& c, const char* pass, double products,
                        const Measurement& m, const char* limit) {
  Record r;
  r.name = fmt::format("attention/{} {}", pass, c.name);
  r.limit = limit;
  r.seconds = m.seconds;
  r.work = products * 2 * visible_pairs(c) * static_cast<double>(c.heads * c.head_size);
  r.unit = "GFLOP/s";
  r.peak_share = r.rate() / m.peak;
  r.runs = m.runs;
  r.dropped = m.dropped;
  if (!c.series.empty()) {
    r.series = fmt::format("{} {}", pass, c.series);
    r.x = c.x;
  }
  // What attention held beside its inputs and outputs at the most, scratch memory of all threads.
  r.more["workspace_bytes"] = static_cast<std::int64_t>(memory_use(MemoryKind::kWorkspace).peak);
  r.more["tokens"] = std::accumulate(c.lengths.begin(), c.lengths.end(), std::int64_t{0});
  return r;
}

// The limits of the products that a case may run on.
struct Probes {
  MultiplyAddProbe fp32;
  std::unique_ptr<MultiplyAddProbe> dot, tiles;  // null: there are none
  Probes() {
    for (const bool are_tiles : {false, true})
      if (const auto* kernels = kernels::bf16_probe_kernels(are_tiles))
        (are_tiles ? tiles : dot) = std::make_unique<MultiplyAddProbe>(*kernels);
  }
  // The one of an implementation, and its name where it is not fp32.
  std::pair<MultiplyAddProbe*, const char*> of(const std::string& implementation) {
    if (implementation == "flash-amx" && tiles) return {tiles.get(), "tiles of bf16"};
    if (implementation == "flash-avx512_bf16" && dot) return {dot.get(), "dot products of bf16"};
    return {&fp32, ""};
  }
};

// Forward has two products over the pairs, backward five.
void run_case(const AttentionCase& c, const SuiteOptions& options, Probes& probes,
              const Emit& emit) {
  std::optional<kernels::ImplementationScope> scope;
  if (c.products) scope.emplace(c.products);
  AttentionProblem p(c, options.seed);
  const auto limit = probes.of(ops::explain_attention(p.input, p.options).back().name);
  MultiplyAddProbe& probe = *limit.first;
  reset_memory_peaks();
  ops::AttentionResult result = ops::attention(p.input, p.options);
  const auto forward = [&] { result = ops::attention(p.input, p.options); };
  const auto backward = [&] {
    ops::attention_backward(p.dout, p.input, result, p.options, p.gradients);
  };
  const MeasureOptions how = options.measure();
  emit(attention_record(c, "forward", 2, measure(forward, probe, how), limit.second));
  emit(attention_record(c, "backward", 5, measure(backward, probe, how), limit.second));
}

// Sequences of one length, 512 channels in all.
AttentionCase case_of_length(std::int64_t tokens, std::int64_t n, std::int64_t d, bool causal,
                             DType dtype) {
  AttentionCase c;
  c.head_size = d;
  c.heads = 512 / d;
  c.causal = causal;
  c.dtype = dtype;
  c.lengths.assign(static_cast<std::size_t>(tokens / n), n);
  c.series =
      fmt::format("{}D={}{}", dtype == DType::kBFloat16 ? "bf16 " : "", d, causal ? " causal" : "");
  c.name = fmt::format("{} N={}", c.series, n);
  c.x = static_cast<double>(n);
  return c;
}

// bf16 as it is chosen, and long sequences on each kind of products of bf16 that the processor has.
void add_bf16_cases(bool quick, std::vector<AttentionCase>& cases) {
  const std::int64_t tokens = quick ? 512 : 4096;
  for (const bool causal : {false, true})
    for (const std::int64_t d :
         quick ? std::vector<std::int64_t>{64} : std::vector<std::int64_t>{64, 128})
      for (std::int64_t n = 128; n <= tokens; n *= quick ? 4 : 2) {
        cases.push_back(case_of_length(tokens, n, d, causal, DType::kBFloat16));
        if (n < tokens / 2) continue;
        for (const char* products : kernels::runnable_bf16_implementations()) {
          AttentionCase c = case_of_length(tokens, n, d, causal, DType::kBFloat16);
          c.products = products;
          c.name += fmt::format(" on {}", products);
          c.series.clear();
          cases.push_back(std::move(c));
        }
      }
}

// One query of 32 heads against a cache of 8 key/value heads, beside reading as many bytes.
void run_decode(DType dtype, std::int64_t keys, const SuiteOptions& options, const Emit& emit) {
  constexpr std::int64_t kHeads = 32, kKvHeads = 8, kSize = 128;
  const auto make = [&](const Shape& shape, std::uint64_t stream) {
    return random_tensor(shape, options.seed, stream).to(dtype);
  };
  const ops::AttentionInput input{make({1, 1, kHeads, kSize}, 1),
                                  make({1, keys, kKvHeads, kSize}, 2),
                                  make({1, keys, kKvHeads, kSize}, 3)};
  const auto bytes = static_cast<std::int64_t>(input.k.nbytes() + input.v.nbytes());
  BandwidthProbe probe({.reads = 1}, bytes / 4);
  const Measurement m = measure([&] { ops::attention(input, {}); }, probe, options.measure());
  Record r;
  r.name = fmt::format("attention/decode {} S={}", dtype_name(dtype), keys);
  r.seconds = m.seconds;
  r.work = static_cast<double>(bytes);
  r.unit = "GB/s";
  r.limit = "memory";
  r.peak_share = r.rate() / m.peak;
  r.runs = m.runs;
  r.dropped = m.dropped;
  emit(r);
}

std::vector<AttentionCase> built_in_cases(bool quick) {
  std::vector<AttentionCase> cases;
  const std::int64_t tokens = quick ? 512 : 4096;
  for (const bool causal : {false, true})
    for (const std::int64_t d :
         quick ? std::vector<std::int64_t>{64} : std::vector<std::int64_t>{32, 64, 128})
      for (std::int64_t n = 128; n <= tokens; n *= 2)
        cases.push_back(case_of_length(tokens, n, d, causal, DType::kFloat32));
  add_bf16_cases(quick, cases);
  for (const auto& [name, mean] :
       {std::pair{"english intents", 13.0}, std::pair{"chinese intents", 10.5},
        std::pair{"5 to 60 tokens", 28.0}}) {
    AttentionCase c;
    c.head_size = 32;
    c.name = fmt::format("D=32 ragged, {}", name);
    c.lengths = text_lengths(static_cast<std::int64_t>(2048 / mean), mean, 1);
    cases.push_back(std::move(c));
  }
  return cases;
}

// [{"name", "heads", "d", "lengths": [...], "causal", "dtype", "products"}, ...], the last three as
// wanted: the same file that
// bench/peers/attention_torch.py reads.
std::vector<AttentionCase> cases_of_file(const std::filesystem::path& path) {
  std::vector<AttentionCase> cases;
  const Json list = Json::parse(read_file(path), path.string());
  for (const Json& item : list.as_array()) {
    AttentionCase c;
    c.name = item.at("name").as_string();
    c.heads = item.at("heads").as_int();
    c.head_size = item.at("d").as_int();
    require<ArgumentError>(
        c.heads >= 1 && c.heads <= 1024 && c.head_size >= 1 && c.head_size <= 1024, "bench",
        "{}: expected 1 to 1024 heads and head sizes, got {} and {}", path.string(), c.heads,
        c.head_size);
    for (const Json& n : item.at("lengths").as_array()) {
      c.lengths.push_back(n.as_int());
      require<ArgumentError>(c.lengths.back() >= 1 && c.lengths.back() <= (1 << 20), "bench",
                             "{}: expected lengths from 1 to 2^20, got {}", path.string(),
                             c.lengths.back());
    }
    const Json* causal = item.find("causal");
    c.causal = causal != nullptr && causal->as_bool();
    if (const Json* dtype = item.find("dtype")) {
      require<ArgumentError>(dtype->as_string() == "float32" || dtype->as_string() == "bfloat16",
                             "bench", "{}: expected a dtype float32 or bfloat16, got '{}'",
                             path.string(), dtype->as_string());
      if (dtype->as_string() == "bfloat16") c.dtype = DType::kBFloat16;
    }
    if (const Json* products = item.find("products")) {
      for (const char* name : kernels::runnable_bf16_implementations())
        if (products->as_string() == name) c.products = name;
      require<ArgumentError>(c.products != nullptr, "bench",
                             "{}: expected products of bf16 that this processor has, got '{}'",
                             path.string(), products->as_string());
    }
    cases.push_back(std::move(c));
  }
  return cases;
}

}  // namespace

void run_attention(const SuiteOptions& options, const Emit& emit) {
  const auto cases =
      options.shapes.empty() ? built_in_cases(options.quick) : cases_of_file(options.shapes);
  Probes probes;
  for (const AttentionCase& c : cases) run_case(c, options, probes, emit);
  if (!options.shapes.empty()) return;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16})
    for (const std::int64_t keys : options.quick ? std::vector<std::int64_t>{512}
                                                 : std::vector<std::int64_t>{4096, 8192, 32768})
      run_decode(dtype, keys, options, emit);
}

}  // namespace qkv::inline v0::bench
