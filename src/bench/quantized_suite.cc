// Products with weights that stay in their stored type: few rows, where memory is the limit, and
// many, where arithmetic is.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/random.h"
#include "bench/inputs.h"
#include "bench/suites.h"
#include "ops/quantized.h"

namespace qkv::inline v0::bench {
namespace {

// Fills `bytes` with copies of a random pattern, so that a large weight is made in no time.
void fill_random(std::uint8_t* data, std::int64_t bytes, std::uint64_t seed) {
  constexpr std::int64_t kPattern = 1 << 16;
  Random random(seed, 9);
  for (std::int64_t i = 0; i < std::min(bytes, kPattern); ++i)
    data[i] = static_cast<std::uint8_t>(random.below(256));
  for (std::int64_t i = kPattern; i < bytes; i += kPattern)
    std::memcpy(data + i, data, static_cast<std::size_t>(std::min(kPattern, bytes - i)));
}

// Blocks of any bytes: no arithmetic here is slower for one value than for another, but for scales
// that are not normal, so those are small and fixed.
ops::QuantizedWeight random_weight(BlockType type, std::int64_t n, std::int64_t k,
                                   std::uint64_t seed) {
  const BlockLayout layout = block_layout(type);
  const Tensor bytes = Tensor::empty({n, k / layout.elements * layout.bytes}, DType::kUInt8);
  auto* data = bytes.data<std::uint8_t>();
  fill_random(data, bytes.numel(), seed);
  constexpr std::uint8_t kHighByte = 0x1C;  // of an fp16 near 0.004
  for (std::int64_t b = 0; b < bytes.numel(); b += layout.bytes) {
    std::uint8_t* scale = data + b + (type == BlockType::kQ6K ? 208 : 0);
    scale[1] = kHighByte;
    if (type == BlockType::kQ41 || type == BlockType::kQ4K) scale[3] = kHighByte;
  }
  return ops::QuantizedWeight(BlockTensor{type, {n, k}, bytes});
}

// Numbers of 16 bits whose upper byte is fixed: near 0.01.
ops::QuantizedWeight random_weight(DType dtype, std::int64_t n, std::int64_t k,
                                   std::uint64_t seed) {
  const Tensor w = Tensor::empty({n, k}, dtype);
  auto* data = static_cast<std::uint8_t*>(w.raw());
  fill_random(data, static_cast<std::int64_t>(w.nbytes()), seed);
  const std::uint8_t high = dtype == DType::kBFloat16 ? 0x3C : 0x20;
  for (std::size_t i = 1; i < w.nbytes(); i += 2) data[i] = high;
  return ops::QuantizedWeight(w);
}

struct Weight {
  const char* name;
  ops::QuantizedWeight value;
};

std::vector<Weight> weights_of(std::int64_t n, std::int64_t k, std::uint64_t seed) {
  std::vector<Weight> weights;
  for (const BlockType type :
       {BlockType::kQ40, BlockType::kQ41, BlockType::kQ80, BlockType::kQ4K, BlockType::kQ6K})
    weights.push_back({block_layout(type).name, random_weight(type, n, k, seed)});
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16})
    weights.push_back({dtype_name(dtype), random_weight(dtype, n, k, seed)});
  return weights;
}

Record record_of(const Weight& w, std::int64_t rows, const Measurement& m) {
  Record r;
  r.name =
      fmt::format("quantized/{} M={} K={} N={}", w.name, rows, w.value.columns(), w.value.rows());
  r.seconds = m.seconds;
  r.runs = m.runs;
  r.dropped = m.dropped;
  r.category = w.name;
  r.series = fmt::format("M={}", rows);
  return r;
}

}  // namespace

void run_quantized(const SuiteOptions& options, const Emit& emit) {
  const std::int64_t k = options.quick ? 512 : 4096, n = options.quick ? 512 : 65536;
  for (const Weight& w : weights_of(n, k, options.seed)) {
    for (const std::int64_t rows : {1, 4}) {
      const Tensor x = random_tensor({rows, k}, options.seed, 4);
      BandwidthProbe probe({1, 0, 0}, static_cast<std::int64_t>(w.value.nbytes() / 4 / 64 * 64));
      const Measurement m =
          measure([&] { ops::quantized_linear(x, w.value); }, probe, options.measure());
      Record r = record_of(w, rows, m);
      r.work = static_cast<double>(w.value.nbytes());
      r.unit = "GB/s";
      r.peak_share = r.rate() / m.peak;
      r.limit = "memory";
      emit(r);
    }
  }
  constexpr std::int64_t kRows = 512;
  const std::int64_t columns = options.quick ? 256 : 1536;
  MultiplyAddProbe probe;
  for (const Weight& w : weights_of(columns, columns, options.seed)) {
    const Tensor x = random_tensor({kRows, columns}, options.seed, 4);
    const Measurement m =
        measure([&] { ops::quantized_linear(x, w.value); }, probe, options.measure());
    Record r = record_of(w, kRows, m);
    r.work = 2.0 * static_cast<double>(kRows * columns * columns);
    r.unit = "GFLOP/s";
    r.peak_share = r.rate() / m.peak;
    r.limit = "arithmetic";
    emit(r);
  }
}

}  // namespace qkv::inline v0::bench
