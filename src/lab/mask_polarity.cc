// mask-polarity: one boolean array under both readings.
#include <cmath>
#include <type_traits>

#include <fmt/format.h>

#include "qkv/attention.h"

#include "lab/draw.h"
#include "lab/lab.h"

namespace qkv::inline v0::lab {

namespace {

constexpr std::int64_t kLength = 32, kWidth = 16;

// No array becomes a mask by itself: mixing the readings up does not compile.
constexpr bool kArrayIsNoMask =
    !std::is_convertible_v<Tensor, Mask> && !std::is_constructible_v<Mask, Tensor>;

}  // namespace

Result run_mask_polarity(const Options& options) {
  Random random(options.seed);
  const ops::AttentionInput input = normal_attention(random, kLength, kLength, kWidth);
  const Tensor flags = Tensor::empty({kLength, kLength}, DType::kBool);
  for (std::int64_t i = 0; i < flags.numel(); ++i) flags.data<bool>()[i] = random.uniform() < 0.75;
  ops::AttentionOptions keep, block;
  keep.mask = Mask::keep(flags);
  block.mask = Mask::block(flags);
  const Tensor a = ops::attention(input, keep).out, b = ops::attention(input, block).out;
  double largest = 0;
  std::int64_t changed = 0, finite = 0;
  for (std::int64_t i = 0; i < a.numel(); ++i) {
    const double x = a.data<float>()[i], y = b.data<float>()[i];
    largest = std::max(largest, std::abs(x - y));
    changed += std::abs(x - y) > 1e-3;
    finite += std::isfinite(x) && std::isfinite(y);
  }
  const auto n = static_cast<double>(a.numel());
  Result result;
  result.table.columns = {"same array read as", "first output", "share of outputs that differ"};
  result.table.rows = {{"keep", fmt::format("{:.4f}", a.data<float>()[0]), "0.0 %"},
                       {"block", fmt::format("{:.4f}", b.data<float>()[0]),
                        fmt::format("{:.1f} %", 100 * static_cast<double>(changed) / n)}};
  result.measured = Json::object();
  result.measured["largest_difference"] = largest;
  result.measured["share_changed"] = static_cast<double>(changed) / n;
  result.measured["share_finite"] = static_cast<double>(finite) / n;
  result.measured["bare_array_refused_by_compiler"] = kArrayIsNoMask;
  const bool silent = finite == a.numel() && changed > a.numel() / 2;
  result.holds = silent && kArrayIsNoMask ? Holds::kTrue : Holds::kFalse;
  result.verdict = fmt::format(
      "both readings give finite numbers of the same shape and nothing warns, yet {:.0f} % of the "
      "outputs differ (by up to {:.2f}); a bare array {} a Mask",
      100 * static_cast<double>(changed) / n, largest,
      kArrayIsNoMask ? "does not compile as" : "compiles as");
  return result;
}

}  // namespace qkv::inline v0::lab
