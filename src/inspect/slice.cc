#include "inspect/slice.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <vector>

#include <fmt/format.h>

#include "base/check.h"

namespace qkv::inline v0::inspect {
namespace {

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

std::int64_t whole_number(std::string_view text, std::string_view index) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  require<ArgumentError>(error == std::errc() && end == text.data() + text.size(), "slice",
                         "expected integers and ranges a:b, as in [0,:5], got '[{}]'", index);
  return value;
}

std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> parts;
  for (std::size_t from = 0;;) {
    const std::size_t comma = text.find(',', from);
    parts.push_back(trimmed(text.substr(from, comma - from)));
    if (comma == std::string_view::npos) return parts;
    from = comma + 1;
  }
}

// A bound of a range, as NumPy reads it: from the end if negative, cut to [0, extent].
std::int64_t bound(std::string_view text, std::int64_t fallback, std::int64_t extent,
                   std::string_view index) {
  if (text.empty()) return fallback;
  const std::int64_t value = whole_number(text, index);
  return std::clamp<std::int64_t>(value < 0 ? value + extent : value, 0, extent);
}

struct TextOptions {
  bool shorten = false;
};

constexpr std::int64_t kEdge = 3;  // elements at each end of a dimension that is shortened

void append_text(std::string& out, const Tensor& t, const TextOptions& options, int indent) {
  if (t.rank() == 0) {
    fmt::format_to(std::back_inserter(out), "{: .6g}", t.data<double>()[0]);
    return;
  }
  out += '[';
  const std::int64_t n = t.dim(0);
  const bool cut = options.shorten && n > 2 * kEdge + 1;
  const std::string gap =
      t.rank() == 1 ? ", " : ",\n" + std::string(static_cast<std::size_t>(indent) + 1, ' ');
  for (std::int64_t i = 0; i < n; ++i) {
    if (i > 0) out += gap;
    if (cut && i == kEdge) {
      out += "...";
      i = n - kEdge - 1;
      continue;
    }
    append_text(out, t.select(0, i), options, indent + 1);
  }
  out += ']';
}

Json json_of(const Tensor& t) {
  if (t.rank() == 0) return t.data<double>()[0];
  Json out = Json::array();
  for (std::int64_t i = 0; i < t.dim(0); ++i) out.push_back(json_of(t.select(0, i)));
  return out;
}

}  // namespace

SliceRequest parse_slice_request(std::string_view text) {
  const std::size_t open = text.find('[');
  if (open == std::string_view::npos) return {std::string(trimmed(text)), ""};
  const std::string_view rest = trimmed(text.substr(open));
  require<ArgumentError>(rest.back() == ']' && rest.find('[', 1) == std::string_view::npos, "slice",
                         "expected NAME or NAME[0,:5], got '{}'", text);
  return {std::string(trimmed(text.substr(0, open))),
          std::string(trimmed(rest.substr(1, rest.size() - 2)))};
}

Tensor take_slice(const Tensor& tensor, std::string_view index) {
  if (trimmed(index).empty()) return tensor;
  const std::vector<std::string_view> parts = split(index);
  require<ArgumentError>(static_cast<int>(parts.size()) <= tensor.rank(), "slice",
                         "expected at most {} indices for the shape {}, got '[{}]'", tensor.rank(),
                         tensor.shape().str(), index);
  Tensor part = tensor;
  int dim = 0;
  for (const std::string_view item : parts) {
    const std::int64_t extent = part.dim(dim);
    const std::size_t colon = item.find(':');
    if (colon == std::string_view::npos) {
      const std::int64_t asked = whole_number(item, index), i = asked < 0 ? asked + extent : asked;
      require<ArgumentError>(i >= 0 && i < extent, "slice",
                             "expected an index below {} for the shape {}, got {} in '[{}]'",
                             extent, tensor.shape().str(), asked, index);
      part = part.select(dim, i);
      continue;
    }
    const std::int64_t from = bound(trimmed(item.substr(0, colon)), 0, extent, index);
    const std::int64_t to = bound(trimmed(item.substr(colon + 1)), extent, extent, index);
    part = part.narrow(dim, from, std::max<std::int64_t>(to - from, 0));
    ++dim;
  }
  return part;
}

std::string tensor_text(const Tensor& tensor, std::int64_t limit) {
  std::string out;
  append_text(out, tensor.to(DType::kFloat64), {tensor.numel() > limit}, 0);
  return out;
}

Json tensor_json(const Tensor& tensor) { return json_of(tensor.to(DType::kFloat64)); }

}  // namespace qkv::inline v0::inspect
