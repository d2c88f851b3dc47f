#include "qkv/mask.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "base/check.h"

namespace qkv::inline v0 {

namespace {

// The rank-4 view [B, H, N, S] of a mask array; strides of broadcast extents do not matter.
Tensor to_rank_four(const char* where, const Tensor& values) {
  require<ShapeError>(values.defined(), where, "expected an array, got an undefined tensor");
  require<ShapeError>(values.rank() == 2 || values.rank() == 4, where,
                      "expected shape [N, S], [B, 1, 1, S], [B, 1, N, S] or [B, H, N, S], got {}",
                      values.shape().str());
  if (values.rank() == 4) return values;
  const Tensor dense = values.contiguous();
  return dense.reshape({1, 1, dense.dim(0), dense.dim(1)});
}

bool is_boolean(DType dtype) { return !is_floating(dtype); }

Mask::Array boolean_array(const char* where, const Tensor& values, bool keep) {
  const Tensor array = to_rank_four(where, values);
  require<ShapeError>(is_boolean(array.dtype()), where,
                      "expected a boolean or integer array, got {}: floating masks go to "
                      "Mask::additive",
                      dtype_name(array.dtype()));
  return {array, keep, false};
}

// Intersection of two limits where -1 stands for none.
std::int64_t tighter(std::int64_t a, std::int64_t b) {
  if (a < 0) return b;
  if (b < 0) return a;
  return std::min(a, b);
}

void check_window(const char* where, std::int64_t left, std::int64_t right) {
  require<ArgumentError>(left >= -1 && right >= -1, where,
                         "expected left and right >= 0, or -1 for unlimited, got {} and {}", left,
                         right);
}

}  // namespace

std::vector<double> alibi_slopes(std::int64_t heads) {
  require<ArgumentError>(heads >= 1, "alibi_slopes", "expected at least 1 head, got {}", heads);
  const auto power = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(heads)));
  std::vector<double> slopes;
  for (std::int64_t h = 1; h <= power; ++h)
    slopes.push_back(std::exp2(-8.0 * static_cast<double>(h) / static_cast<double>(power)));
  for (std::int64_t h = 1; h <= heads - power; ++h)
    slopes.push_back(std::exp2(-4.0 * static_cast<double>(2 * h - 1) / static_cast<double>(power)));
  return slopes;
}

Mask Mask::keep(const Tensor& keep) {
  Mask mask;
  mask.arrays_.push_back(boolean_array("Mask::keep", keep, true));
  return mask;
}

Mask Mask::block(const Tensor& block) {
  Mask mask;
  mask.arrays_.push_back(boolean_array("Mask::block", block, false));
  return mask;
}

Mask Mask::additive(const Tensor& bias) {
  const Tensor array = to_rank_four("Mask::additive", bias);
  require<ShapeError>(array.dtype() == DType::kFloat32 || array.dtype() == DType::kFloat64,
                      "Mask::additive",
                      "expected float32 or float64, got {}: boolean arrays go to Mask::keep or "
                      "Mask::block",
                      dtype_name(array.dtype()));
  Mask mask;
  mask.arrays_.push_back({array, false, true});
  return mask;
}

Mask Mask::causal() {
  Mask mask;
  mask.causal_ = true;
  mask.right_ = 0;
  return mask;
}

Mask Mask::window(std::int64_t n) {
  require<ArgumentError>(n >= 1, "Mask::window", "expected a window of at least 1 key, got {}", n);
  return window(n - 1, n - 1);
}

Mask Mask::window(std::int64_t left, std::int64_t right) {
  check_window("Mask::window", left, right);
  Mask mask;
  mask.left_ = left;
  mask.right_ = right;
  return mask;
}

Mask Mask::window_with_globals(std::int64_t left, std::int64_t right,
                               std::vector<std::int64_t> tokens) {
  check_window("Mask::window_with_globals", left, right);
  std::sort(tokens.begin(), tokens.end());
  const std::int64_t first = tokens.empty() ? 0 : tokens.front();
  require<ArgumentError>(first >= 0, "Mask::window_with_globals",
                         "expected positions of tokens >= 0, got {}", first);
  Mask mask;
  mask.windows_.push_back({left, right, std::move(tokens)});
  return mask;
}

Mask Mask::alibi(std::vector<double> slopes) {
  for (const double slope : slopes)
    require<ArgumentError>(std::isfinite(static_cast<float>(slope)), "Mask::alibi",
                           "expected slopes that are finite as float32, got {}", slope);
  Mask mask;
  mask.slopes_ = std::make_shared<const std::vector<double>>(std::move(slopes));
  return mask;
}

Mask Mask::lengths(std::vector<std::int64_t> lengths) {
  for (const std::int64_t n : lengths)
    require<ArgumentError>(n >= 0, "Mask::lengths", "expected lengths >= 0, got {}", n);
  Mask mask;
  mask.lengths_ = std::make_shared<const std::vector<std::int64_t>>(std::move(lengths));
  return mask;
}

Mask operator&(const Mask& a, const Mask& b) {
  Mask mask = a;
  mask.causal_ = a.causal_ || b.causal_;
  mask.left_ = tighter(a.left_, b.left_);
  mask.right_ = tighter(a.right_, b.right_);
  if (a.lengths_ && b.lengths_) {
    require<ShapeError>(a.lengths_->size() == b.lengths_->size(), "Mask",
                        "expected two lengths masks of one batch size, got {} and {}",
                        a.lengths_->size(), b.lengths_->size());
    std::vector<std::int64_t> both = *a.lengths_;
    for (std::size_t i = 0; i < both.size(); ++i) both[i] = std::min(both[i], (*b.lengths_)[i]);
    mask.lengths_ = std::make_shared<const std::vector<std::int64_t>>(std::move(both));
  } else if (b.lengths_) {
    mask.lengths_ = b.lengths_;
  }
  if (a.slopes_ && b.slopes_) {
    require<ShapeError>(a.slopes_->size() == b.slopes_->size(), "Mask",
                        "expected two alibi masks of one number of heads, got {} and {}",
                        a.slopes_->size(), b.slopes_->size());
    std::vector<double> sum = *a.slopes_;
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += (*b.slopes_)[i];
    mask.slopes_ = std::make_shared<const std::vector<double>>(std::move(sum));
  } else if (b.slopes_) {
    mask.slopes_ = b.slopes_;
  }
  mask.windows_.insert(mask.windows_.end(), b.windows_.begin(), b.windows_.end());
  mask.arrays_.insert(mask.arrays_.end(), b.arrays_.begin(), b.arrays_.end());
  return mask;
}

bool Mask::is_trivial() const {
  return left_ < 0 && right_ < 0 && lengths_ == nullptr && slopes_ == nullptr && windows_.empty() &&
         arrays_.empty();
}

void Mask::check(std::int64_t batch, std::int64_t heads, std::int64_t n, std::int64_t s) const {
  if (lengths_) {
    require<ShapeError>(static_cast<std::int64_t>(lengths_->size()) == batch, "mask",
                        "expected {} lengths, one per sequence, got {}", batch, lengths_->size());
    for (const std::int64_t length : *lengths_)
      require<ShapeError>(length <= s, "mask", "expected lengths of at most {} keys, got {}", s,
                          length);
  }
  if (slopes_)
    require<ShapeError>(static_cast<std::int64_t>(slopes_->size()) == heads, "mask",
                        "expected {} slopes, one per query head, got {}", heads, slopes_->size());
  const std::int64_t full[4] = {batch, heads, n, s};
  for (const Array& array : arrays_)
    for (int i = 0; i < 4; ++i)
      require<ShapeError>(array.values.dim(i) == full[i] || array.values.dim(i) == 1, "mask",
                          "expected an array that broadcasts to [{}, {}, {}, {}], got {}", batch,
                          heads, n, s, array.values.shape().str());
}

std::string Mask::str() const {
  std::string text;
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : " & ") + part; };
  if (causal_) add("causal");
  if (left_ >= 0 || (right_ >= 0 && !causal_)) add(fmt::format("window({}, {})", left_, right_));
  for (const Window& w : windows_)
    add(fmt::format("window({}, {}) with {} globals", w.left, w.right, w.globals.size()));
  if (slopes_) add(fmt::format("alibi[{}]", slopes_->size()));
  if (lengths_) add(fmt::format("lengths[{}]", lengths_->size()));
  for (const Array& array : arrays_)
    add((array.additive ? "additive" : array.keep ? "keep" : "block") + array.values.shape().str());
  return text.empty() ? "all" : text;
}

}  // namespace qkv::inline v0
