// mask-values: numbers that stand in for "blocked", in three formats, with usual and extreme
// scores.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>

#include <fmt/format.h>

#include "lab/draw.h"
#include "lab/lab.h"
#include "ops/softmax.h"

namespace qkv::inline v0::lab {

namespace {

constexpr std::int64_t kRows = 64, kKeys = 64;  // the second half of the keys is blocked

double lowest(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return -65504;
    case DType::kBFloat16:
      return -3.3895313892515355e38;
    default:
      return -static_cast<double>(std::numeric_limits<float>::max());
  }
}

struct Case {
  const char* key;
  float lead;  // how far the blocked scores lie above the others
  int masks;   // how often the mask is added
  bool all_blocked;
};

constexpr std::array kCases{Case{"usual", 0, 1, false}, Case{"outliers", 30000, 1, false},
                            Case{"row_blocked", 0, 1, true}, Case{"row_blocked_twice", 0, 2, true}};

// score + mask in `dtype`, as an engine that stores scores in it does; the softmax itself is fp32.
Tensor masked_weights(const Tensor& scores, const Case& c, double mask, DType dtype) {
  const Tensor wide = Tensor::empty(scores.shape());
  const auto rounded = [&](const Tensor& x) { return x.to(dtype).to(DType::kFloat32); };
  const auto blocked = [&](std::int64_t i) { return c.all_blocked || i % kKeys >= kKeys / 2; };
  for (std::int64_t i = 0; i < scores.numel(); ++i)
    wide.data<float>()[i] = scores.data<float>()[i] + (blocked(i) ? c.lead : 0);
  Tensor stored = rounded(wide);
  const Tensor value = Tensor::empty({1});
  value.fill(mask);
  const float m = rounded(value).data<float>()[0];
  for (int time = 0; time < c.masks; ++time) {
    float* s = stored.data<float>();
    for (std::int64_t i = 0; i < stored.numel(); ++i) s[i] += blocked(i) ? m : 0;
    stored = rounded(stored);
  }
  return ops::softmax(stored);
}

struct Outcome {
  double blocked = 0;  // mean weight of a row on blocked keys
  double total = 0;    // mean sum of a row
};

Outcome outcome_of(const Tensor& weights, bool all_blocked) {
  Outcome out;
  const float* w = weights.data<float>();
  for (std::int64_t i = 0; i < kRows; ++i) {
    for (std::int64_t j = 0; j < kKeys; ++j) {
      out.total += w[i * kKeys + j] / kRows;
      if (all_blocked || j >= kKeys / 2) out.blocked += w[i * kKeys + j] / kRows;
    }
  }
  return out;
}

}  // namespace

Result run_mask_values(const Options& options) {
  Random random(options.seed);
  const Tensor scores = normal_tensor(random, {kRows, kKeys});
  Result result;
  result.table.columns = {"format",
                          "value",
                          "usual scores",
                          "blocked scores 30000 higher",
                          "row blocked entirely",
                          "the same by two masks"};
  result.measured = Json::object();
  bool infinity_blocks = true, others_differ = false;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    Json of_format = Json::object();
    const struct {
      const char* key;
      double value;
    } values[] = {{"-1e4", -1e4}, {"-1e9", -1e9}, {"lowest", lowest(dtype)}, {"-inf", -INFINITY}};
    for (const auto& [key, value] : values) {
      std::vector<std::string> row{dtype_name(dtype), key};
      Json cells = Json::object();
      for (const Case& c : kCases) {
        const Outcome out = outcome_of(masked_weights(scores, c, value, dtype), c.all_blocked);
        row.push_back(fmt::format("{:.3g}", out.blocked));
        cells[c.key] = out.blocked;
        if (std::isinf(value)) {
          infinity_blocks &= out.blocked == 0;
        } else {
          others_differ |= out.blocked > 0.01;
        }
      }
      result.table.rows.push_back(std::move(row));
      of_format[key] = std::move(cells);
    }
    result.measured[dtype_name(dtype)] = std::move(of_format);
  }
  result.holds = infinity_blocks && others_differ ? Holds::kTrue : Holds::kFalse;
  const double leak = result.measured.at("float32").at("-1e4").at("outliers").as_double();
  result.verdict = fmt::format(
      "weight on blocked keys: -inf gives exactly 0 everywhere; -1e4 leaves {:.2g} when their "
      "scores "
      "are 30000 higher than the others; a row blocked entirely is spread over its blocked keys by "
      "finite values, and "
      "two added lowest numbers overflow to -inf",
      leak);
  return result;
}

}  // namespace qkv::inline v0::lab
