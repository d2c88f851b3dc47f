#include "kernels/attention_bias.h"

#include <algorithm>
#include <cstdlib>
#include <limits>

#include "base/thread_pool.h"
#include "kernels/attention_workspace.h"

namespace qkv::inline v0::kernels {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLowest = std::numeric_limits<float>::lowest();
constexpr double kLog2E = 1.4426950408889634;

// Shares that a gradient is summed in where many calls add to the same elements, and the most
// elements that are worth a share of their own.
constexpr std::int64_t kShares = 8;
constexpr std::int64_t kShareElements = std::int64_t{1} << 20;

// What one element of an additive array adds, in the log2 domain. A finite minimum must not become
// the -inf that blocks.
float additive_bias(double value) {
  if (value == -kInfinity) return -kInfinity;
  return static_cast<float>(std::max<double>(value * kLog2E, kLowest));
}

// Sum of two biases; -inf wins over everything, NaN and +inf too.
float join(float a, float b) {
  if (a == -kInfinity || b == -kInfinity) return -kInfinity;
  return std::max(a + b, kLowest);
}

// Joins one array into a tile. `value(at)` is the bias of element `at`. Reads run along the keys,
// which are contiguous in memory; one value for all queries is read once.
template <class Value>
void join_array(const AttentionMaskArray& array, const BiasContext& c, const FlashTile& tile,
                float* bias, const Value& value) {
  const std::int64_t rows = array.strides[2] == 0 ? 1 : tile.queries;
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::int64_t at = array.offset(c.b, c.h, tile.first_query + i, tile.first_key);
    for (std::int64_t r = 0; r < tile.keys; ++r) {
      const float b = value(at + r * array.strides[3]);
      if (b == 0) continue;
      float* row = bias + r * tile.stride;
      const std::int64_t end = rows == 1 ? tile.queries : i + 1;
      for (std::int64_t lane = i; lane < end; ++lane) row[lane] = join(row[lane], b);
    }
  }
}

template <class Element>
void join_boolean(const AttentionMaskArray& array, const BiasContext& c, const FlashTile& tile,
                  float* bias) {
  const auto* data = static_cast<const Element*>(array.data);
  const bool keep = array.kind == AttentionMaskArray::Kind::kKeep;
  join_array(array, c, tile, bias,
             [=](std::int64_t at) { return (data[at] != 0) == keep ? 0.0f : -kInfinity; });
}

void join_any(const AttentionMaskArray& array, const BiasContext& c, const FlashTile& tile,
              float* bias) {
  if (array.kind == AttentionMaskArray::Kind::kAdditive)
    return join_array(array, c, tile, bias,
                      [&](std::int64_t at) { return additive_bias(array.value(at)); });
  switch (array.element_bytes) {
    case 1:
      return join_boolean<std::uint8_t>(array, c, tile, bias);
    case 2:
      return join_boolean<std::int16_t>(array, c, tile, bias);
    case 4:
      return join_boolean<std::int32_t>(array, c, tile, bias);
    default:
      return join_boolean<std::int64_t>(array, c, tile, bias);
  }
}

// What a window does to a tile.
FlashBias window_of_tile(const AttentionWindow& w, std::int64_t offset, const FlashTile& t) {
  if (t.queries == 0 || t.keys == 0) return FlashBias::kBlocked;
  const std::int64_t position = t.first_query + offset;
  // Distances key - position run from `least` to `most`, all of them.
  const std::int64_t least = t.first_key - (position + t.queries - 1);
  const std::int64_t most = t.first_key + t.keys - 1 - position;
  const bool left_open = w.left < 0 || least >= -w.left;
  const bool right_open = w.right < 0 || most <= w.right;
  if (left_open && right_open) return FlashBias::kOpen;
  if ((w.left < 0 || most >= -w.left) && (w.right < 0 || least <= w.right))
    return FlashBias::kPartial;
  if (w.any_global(t.first_key, t.first_key + t.keys) ||
      w.any_global(position, position + t.queries))
    return FlashBias::kPartial;
  return FlashBias::kBlocked;
}

void hide_beside_window(const AttentionWindow& w, std::int64_t offset, const FlashTile& t,
                        float* bias) {
  static_assert(kFlashQueries <= 64);
  const std::int64_t position = t.first_query + offset;
  std::uint64_t global_queries = 0;
  for (std::int64_t i = 0; i < t.queries; ++i)
    if (w.any_global(position + i, position + i + 1)) global_queries |= std::uint64_t{1} << i;
  for (std::int64_t r = 0; r < t.keys; ++r) {
    const std::int64_t key = t.first_key + r;
    if (w.any_global(key, key + 1)) continue;
    for (std::int64_t i = 0; i < t.queries; ++i)
      if (!w.in_band(position + i, key) && (global_queries >> i & 1) == 0)
        bias[r * t.stride + i] = -kInfinity;
  }
}

void join_slopes(const BiasContext& c, const FlashTile& t, float* bias) {
  const double slope = c.mask->slopes[c.h] * kLog2E;
  for (std::int64_t r = 0; r < t.keys; ++r)
    for (std::int64_t i = 0; i < t.queries; ++i) {
      const std::int64_t distance = t.first_query + i + c.offset - t.first_key - r;
      float& to = bias[r * t.stride + i];
      to = join(to, static_cast<float>(-slope * static_cast<double>(std::abs(distance))));
    }
}

// Adds a tile's gradients to elements that may stand for several queries or keys.
template <class Element>
void add_tile(const AttentionBiasGradient& to, const BiasContext& c, const FlashTile& t,
              const float* gradients) {
  const bool own_query = to.strides[2] != 0, own_key = to.strides[3] != 0;
  const std::int64_t rows = own_query ? t.queries : 1, columns = own_key ? t.keys : 1;
  auto* data = static_cast<Element*>(to.data) + c.b * to.strides[0] + c.h * to.strides[1] +
               t.first_query * to.strides[2] + t.first_key * to.strides[3];
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < columns; ++j) {
      double sum = 0;
      for (std::int64_t r = j; r < (own_key ? j + 1 : t.keys); ++r)
        for (std::int64_t lane = i; lane < (own_query ? i + 1 : t.queries); ++lane)
          sum += gradients[r * t.stride + lane];
      data[i * to.strides[2] + j * to.strides[3]] += static_cast<Element>(sum);
    }
}

std::int64_t elements(const AttentionBiasGradient& g) {
  return g.sizes[0] * g.sizes[1] * g.sizes[2] * g.sizes[3];
}

// Element number `index` in row-major order.
std::int64_t offset_of(const AttentionBiasGradient& g, std::int64_t index) {
  std::int64_t at = 0;
  for (int d = 3; d >= 0; --d) {
    at += index % g.sizes[d] * g.strides[d];
    index /= g.sizes[d];
  }
  return at;
}

void store(const AttentionBiasGradient& to, std::int64_t at, double value) {
  if (to.is_double)
    static_cast<double*>(to.data)[at] = value;
  else
    static_cast<float*>(to.data)[at] = static_cast<float>(value);
}

// A contiguous share in double with the broadcasting of `like`.
AttentionBiasGradient share_of(const AttentionBiasGradient& like, double* data) {
  AttentionBiasGradient share = like;
  share.data = data;
  share.is_double = true;
  std::int64_t stride = 1;
  for (int d = 3; d >= 0; --d) {
    share.strides[d] = like.strides[d] == 0 ? 0 : stride;
    stride *= like.sizes[d];
  }
  return share;
}

}  // namespace

bool tile_is_open(const BiasContext& c, const FlashTile& tile) {
  if (c.mask->array_count > 0 || c.with_slopes) return false;
  if (c.band && window_of_tile(*c.band, c.offset, tile) != FlashBias::kOpen) return false;
  for (int w = 0; w < c.mask->window_count; ++w)
    if (window_of_tile(c.mask->windows[w], c.offset, tile) != FlashBias::kOpen) return false;
  return true;
}

FlashBias fill_bias(const void* context, const FlashTile& tile, float* bias) {
  const auto& c = *static_cast<const BiasContext*>(context);
  if (tile_is_open(c, tile)) return FlashBias::kOpen;
  for (int w = 0; w < c.mask->window_count; ++w)
    if (window_of_tile(c.mask->windows[w], c.offset, tile) == FlashBias::kBlocked)
      return FlashBias::kBlocked;
  for (std::int64_t r = 0; r < tile.keys; ++r)
    std::fill_n(bias + r * tile.stride, tile.queries, 0.0f);
  if (c.band) hide_beside_window(*c.band, c.offset, tile, bias);
  for (int w = 0; w < c.mask->window_count; ++w)
    hide_beside_window(c.mask->windows[w], c.offset, tile, bias);
  for (int a = 0; a < c.mask->array_count; ++a) join_any(c.mask->arrays[a], c, tile, bias);
  if (c.with_slopes) join_slopes(c, tile, bias);
  std::int32_t open = 0, blocked = 0;
  for (std::int64_t r = 0; r < tile.keys; ++r)
    for (std::int64_t i = 0; i < tile.queries; ++i) {
      open += bias[r * tile.stride + i] == 0;
      blocked += bias[r * tile.stride + i] == -kInfinity;
    }
  const std::int64_t all = tile.keys * tile.queries;
  if (open == all) return FlashBias::kOpen;
  if (blocked == 0) return FlashBias::kAdded;
  return blocked == all ? FlashBias::kBlocked : FlashBias::kPartial;
}

void add_bias_gradient(const void* context, const FlashTile& tile, const float* gradients) {
  const auto& c = *static_cast<const BiasContext*>(context);
  if (c.gradient->is_double)
    add_tile<double>(*c.gradient, c, tile, gradients);
  else
    add_tile<float>(*c.gradient, c, tile, gradients);
}

void add_to_bias(const AttentionBiasGradient& to, std::int64_t b, std::int64_t h, std::int64_t i,
                 std::int64_t j, double value) {
  const std::int64_t at =
      b * to.strides[0] + h * to.strides[1] + i * to.strides[2] + j * to.strides[3];
  if (to.is_double)
    static_cast<double*>(to.data)[at] += value;
  else
    static_cast<float*>(to.data)[at] += static_cast<float>(value);
}

void sum_bias_gradient(
    const AttentionBiasGradient& to, std::int64_t batch, std::int64_t kv_heads,
    FunctionRef<void(std::int64_t b, std::int64_t kv, const AttentionBiasGradient& sum, bool alone)>
        body) {
  const std::int64_t size = elements(to);
  // Units touch elements of their own; the calls inside a unit share theirs.
  const bool own_b = to.strides[0] != 0, own_h = to.strides[1] != 0;
  const std::int64_t unit_heads = own_h ? kv_heads : 1, units = (own_b ? batch : 1) * unit_heads;
  const std::int64_t inner_heads = own_h ? 1 : kv_heads, calls = (own_b ? 1 : batch) * inner_heads;
  const std::int64_t wanted = (kShares + units - 1) / std::max<std::int64_t>(units, 1);
  const bool direct = size > kShareElements;
  const std::int64_t shares =
      direct ? 1 : std::clamp<std::int64_t>(wanted, 1, std::max<std::int64_t>(calls, 1));
  const Workspace<double> memory(direct ? 0 : shares * size);
  if (direct)
    for (std::int64_t at = 0; at < size; ++at) store(to, offset_of(to, at), 0);
  else
    std::fill_n(memory.data(), shares * size, 0.0);
  const auto run = [&](std::int64_t work) {
    const std::int64_t unit = work / shares, share = work % shares;
    const AttentionBiasGradient sum = direct ? to : share_of(to, memory.data() + share * size);
    for (std::int64_t call = calls * share / shares; call < calls * (share + 1) / shares; ++call) {
      const std::int64_t b = own_b ? unit / unit_heads : call / inner_heads;
      const std::int64_t kv = own_h ? unit % unit_heads : call % inner_heads;
      body(b, kv, sum, units * shares == 1);
    }
  };
  if (units * shares == 1)
    run(0);
  else
    parallel_for(units * shares, run);
  if (direct) return;
  parallel_chunks(size, 4096, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t at = begin; at < end; ++at) {
      double sum = 0;
      for (std::int64_t share = 0; share < shares; ++share) sum += memory.data()[share * size + at];
      store(to, offset_of(to, at), sum);
    }
  });
}

}  // namespace qkv::inline v0::kernels
