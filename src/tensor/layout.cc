#include "qkv/layout.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>

#include "base/check.h"
#include "tensor/layout_check.h"

namespace qkv::inline v0 {

std::int64_t RaggedLayout::max_length() const {
  std::int64_t longest = 0;
  for (std::int64_t b = 0; b < batch(); ++b) longest = std::max(longest, length(b));
  return longest;
}

void check_layout(const RaggedLayout& layout, const char* where) {
  require<ShapeError>(!layout.starts.empty() && layout.starts[0] == 0, where,
                      "expected starts of sequences that begin with 0, got {}",
                      layout.starts.empty() ? "none" : std::to_string(layout.starts[0]));
  for (std::int64_t b = 0; b < layout.batch(); ++b)
    require<ShapeError>(layout.length(b) >= 0, where,
                        "expected starts of sequences that never fall, got a length of {} for "
                        "sequence {}",
                        layout.length(b), b);
  require<ShapeError>(layout.positions.empty() ||
                          static_cast<std::int64_t>(layout.positions.size()) == layout.tokens(),
                      where, "expected {} positions in the layout, one per token, got {}",
                      layout.tokens(), layout.positions.size());
  require<ShapeError>(
      layout.samples.empty() || static_cast<std::int64_t>(layout.samples.size()) == layout.batch(),
      where, "expected {} samples in the layout, one per sequence, got {}", layout.batch(),
      layout.samples.size());
}

RaggedLayout RaggedLayout::from_lengths(std::span<const std::int64_t> lengths) {
  RaggedLayout layout;
  std::int64_t total = 0;
  for (const std::int64_t n : lengths) {
    require<ShapeError>(n >= 0, "layout", "expected sequence lengths >= 0, got {}", n);
    total += n;
    require<ShapeError>(total <= std::numeric_limits<std::int32_t>::max(), "layout",
                        "expected at most 2^31 - 1 tokens in a batch, got {}", total);
    layout.starts.push_back(static_cast<std::int32_t>(total));
    for (std::int64_t i = 0; i < n; ++i) layout.positions.push_back(static_cast<std::int32_t>(i));
  }
  layout.samples.resize(lengths.size());
  std::iota(layout.samples.begin(), layout.samples.end(), 0);
  return layout;
}

}  // namespace qkv::inline v0
