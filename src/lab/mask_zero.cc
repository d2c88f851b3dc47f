// mask-zero: a causal mask made by writing or multiplying zeros, beside one that skips.
#include <algorithm>
#include <cmath>
#include <vector>

#include <fmt/format.h>

#include "qkv/attention.h"

#include "lab/draw.h"
#include "lab/lab.h"
#include "ops/linear.h"
#include "ops/softmax.h"

namespace qkv::inline v0::lab {

namespace {

constexpr std::int64_t kLength = 64, kWidth = 64;

struct Leak {
  double mean = 0, largest = 0;  // weight on blocked keys, of a row that has some
};

Leak leak_of(const Tensor& weights) {
  const float* w = weights.data<float>();
  Leak leak;
  for (std::int64_t i = 0; i + 1 < kLength; ++i) {
    double row = 0;
    for (std::int64_t j = i + 1; j < kLength; ++j) row += w[i * kLength + j];
    leak.mean += row / static_cast<double>(kLength - 1);
    leak.largest = std::max(leak.largest, row);
  }
  return leak;
}

// softmax of the scaled scores after `change` was applied to every blocked one.
template <class F>
Tensor weights_with(const Tensor& scores, F change) {
  const Tensor changed = scores.clone();
  float* s = changed.data<float>();
  for (std::int64_t i = 0; i < kLength; ++i) {
    for (std::int64_t j = i + 1; j < kLength; ++j) s[i * kLength + j] = change(s[i * kLength + j]);
  }
  return ops::softmax(changed);
}

}  // namespace

Result run_mask_zero(const Options& options) {
  Random random(options.seed);
  const ops::AttentionInput input = normal_attention(random, kLength, kLength, kWidth);
  const Tensor q = input.q.reshape({kLength, kWidth}).clone();
  for (std::int64_t i = 0; i < q.numel(); ++i)
    q.data<float>()[i] /= std::sqrt(static_cast<float>(kWidth));
  const Tensor scores =
      ops::linear(q, input.k.reshape({kLength, kWidth}), Tensor()).y;  // q k^T / sqrt(d)
  ops::AttentionOptions causal;
  causal.mask = Mask::causal();
  causal.return_weights = true;
  struct Way {
    const char* name;
    const char* key;
    Leak leak;
  };
  const std::vector<Way> ways = {
      {"write 0 before softmax", "write_zero",
       leak_of(weights_with(scores, [](float) { return 0.0f; }))},
      {"multiply by 0 before softmax", "multiply_zero",
       leak_of(weights_with(scores, [](float s) { return s * 0.0f; }))},
      {"write -inf before softmax", "minus_infinity",
       leak_of(weights_with(scores, [](float) { return -INFINITY; }))},
      {"skip (Mask::causal)", "skip", leak_of(ops::attention(input, causal).weights)},
  };
  Result result;
  result.table.columns = {"causal mask", "weight on blocked keys, mean", "largest"};
  result.measured = Json::object();
  for (const Way& way : ways) {
    result.table.rows.push_back(
        {way.name, fmt::format("{:.4f}", way.leak.mean), fmt::format("{:.4f}", way.leak.largest)});
    result.measured[std::string(way.key) + "_mean"] = way.leak.mean;
    result.measured[std::string(way.key) + "_largest"] = way.leak.largest;
  }
  const bool zeros_leak = ways[0].leak.mean > 0.01 && ways[1].leak.mean > 0.01;
  const bool others_block = ways[2].leak.largest == 0 && ways[3].leak.largest == 0;
  result.holds = zeros_leak && others_block ? Holds::kTrue : Holds::kFalse;
  result.verdict = fmt::format(
      "with zeros {:.0f} % of a row's weight lies on keys that should be hidden (e^0 = 1 is an "
      "ordinary score), with -inf or skipping exactly {}",
      100 * ways[0].leak.mean, ways[3].leak.largest);
  return result;
}

}  // namespace qkv::inline v0::lab
