#include "kernels/attention_decode.h"

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include <fmt/format.h>

#include "base/convert.h"
#include "base/memory.h"
#include "base/thread_pool.h"
#include "kernels/attention_bias.h"
#include "kernels/attention_workspace.h"
#include "kernels/narrow_rows.h"

namespace qkv::inline v0::kernels {

namespace {

constexpr int kScratchSlot = 5;
constexpr double kLn2 = 0.69314718055994530942;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

constexpr std::int64_t kMostQueries = 8, kLeastKeys = 256;
// Keys of a part, and parts of a sequence. All heads go through a part before the next one begins:
// where heads lie side by side in memory, pages are then read as wholes.
constexpr std::int64_t kPartKeys = 128, kMostParts = 512;
// Parts of a work item.
constexpr std::int64_t kItemParts = 4;
// Up to so many rows a product by horizontal sums is cheaper.
constexpr std::int64_t kDotRows = 8;

std::int64_t round_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }

struct Parts {
  std::int64_t count, size;
};
Parts parts_of(std::int64_t keys) {
  const std::int64_t size =
      std::max(kPartKeys, round_up((keys + kMostParts - 1) / kMostParts, kDecodeKeys));
  return {(keys + size - 1) / size, size};
}

// Query heads [head, head + heads) of one key/value head of sequence b: rows g * N + i.
struct Rows {
  std::int64_t b, head, heads;
  std::int64_t result;  // where the partial results of its first part begin, in floats
};

// One part's result: maxima, sums, then values; see FlashDecode.
struct PartLayout {
  std::int64_t stride, value_width, rows;
  std::int64_t size() const { return 2 * stride + rows * value_width; }
};
template <class T>
PartLayout layout_of(const AttentionProblem<T>& p, const Rows& r, std::int64_t lanes) {
  const std::int64_t rows = r.heads * p.queries.length(r.b);
  return {round_up(rows, lanes), round_up(p.value_size, lanes), rows};
}

// Heads that share a key/value head, as many as fit the lanes of a tile.
template <class T>
std::vector<Rows> rows_to_decode(const AttentionProblem<T>& p, std::int64_t lanes,
                                 std::int64_t* total) {
  std::vector<Rows> all;
  *total = 0;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    if (!is_decoded(p, b)) continue;
    const std::int64_t most = kFlashQueries / p.queries.length(b), group = p.group();
    for (std::int64_t kv = 0; kv < p.kv_heads; ++kv)
      for (std::int64_t g = 0; g < group; g += most) {
        all.push_back({b, kv * group + g, std::min(most, group - g), *total});
        *total += parts_of(p.keys.length(b)).count * layout_of(p, all.back(), lanes).size();
      }
  }
  return all;
}

// What FlashHead::bias_context points to here.
struct DecodeContext {
  BiasContext first;  // of the first head
  std::int64_t heads, queries;
};

// The tile of all heads from the tiles of each.
FlashBias fill_rows(const void* context, const FlashTile& tile, float* bias) {
  const auto& c = *static_cast<const DecodeContext*>(context);
  BiasContext of_head = c.first;
  FlashTile t = tile;
  t.queries = c.queries;
  if (tile_is_open(of_head, t)) return FlashBias::kOpen;
  std::fill_n(bias, tile.keys * tile.stride, 0.0f);
  std::int64_t blocked = 0;
  bool hides = false, adds = false;
  for (std::int64_t g = 0; g < c.heads; ++g, ++of_head.h) {
    const FlashBias kind = fill_bias(&of_head, t, bias + g * c.queries);
    if (kind == FlashBias::kBlocked) {
      ++blocked;
      for (std::int64_t r = 0; r < tile.keys; ++r)
        std::fill_n(bias + r * tile.stride + g * c.queries, c.queries, -kInfinity);
    }
    hides = hides || kind == FlashBias::kPartial || kind == FlashBias::kBlocked;
    adds = adds || kind == FlashBias::kAdded;
  }
  if (blocked == c.heads) return FlashBias::kBlocked;
  return hides ? FlashBias::kPartial : adds ? FlashBias::kAdded : FlashBias::kOpen;
}

// Scaled queries as the kernel wants them: rows in whole registers, or transposed.
template <class T>
void pack_queries(const AttentionProblem<T>& p, const Rows& r, const FlashDecode& d, float scale,
                  float* to) {
  const std::int64_t n = p.queries.length(r.b), width = d.transposed ? d.head.tile : d.q_stride;
  std::fill_n(to, d.transposed ? p.head_size * width : round_up(d.rows, 4) * width, 0.0f);
  for (std::int64_t row = 0; row < d.rows; ++row) {
    const T* q = p.q.at(p.queries, r.b, r.head + row / n) + row % n * p.q.token_stride;
    for (std::int64_t c = 0; c < p.head_size; ++c)
      to[d.transposed ? c * width + row : row * width + c] =
          from_double<float>(to_double(q[c])) * scale;
  }
}

// Rows [begin, end) of keys or values in fp32: where they are, or widened to `to`.
FlashRows wide_rows(const FlashTable&, const float* data, std::int64_t stride, std::int64_t begin,
                    std::int64_t, std::int64_t, float*) {
  return {data + begin * stride, stride};
}
template <class T>
FlashRows wide_rows(const FlashTable& table, const T* data, std::int64_t stride, std::int64_t begin,
                    std::int64_t end, std::int64_t depth, float* to) {
  table.widen(narrow_rows(data + begin * stride, stride), end - begin, depth, to);
  return {to, depth};
}

template <class T>
void decode_part(const FlashTable& table, const AttentionProblem<T>& p, const Rows& r,
                 std::int64_t part, float* results) {
  const std::int64_t kv = r.head / p.group(), n = p.queries.length(r.b);
  const PartLayout layout = layout_of(p, r, table.lanes);
  const Parts parts = parts_of(p.keys.length(r.b));
  float* result = results + r.result + part * layout.size();
  // Keys that any of the queries sees by window and causal.
  const std::int64_t begin = std::max(part * parts.size, p.key_begin(r.b, 0));
  const std::int64_t end =
      std::max(begin, std::min((part + 1) * parts.size, p.key_end(r.b, n - 1)));

  FlashDecode d{};
  d.rows = layout.rows;
  d.transposed = layout.rows > kDotRows;
  d.q_stride = round_up(p.head_size, table.lanes);
  d.maximum = result;
  d.sum = result + layout.stride;
  d.out = result + 2 * layout.stride;
  FlashHead& head = d.head;
  head.left = head.right = -1;  // the bias tile knows
  head.head_size = p.head_size;
  head.value_size = p.value_size;
  head.tile = layout.stride;
  set_scales(head, p.scale, p.softcap, 0);  // likewise the slopes
  const AttentionWindow band = {p.mask.left, p.mask.right};
  DecodeContext context{{&p.mask, r.b, r.head, p.keys.length(r.b) - n, nullptr}, r.heads, n};
  context.first.band = &band;
  context.first.with_slopes = p.mask.slopes != nullptr;
  head.fill_bias = fill_rows;
  head.bias_context = &context;
  const std::int64_t queries =
      d.transposed ? p.head_size * layout.stride : round_up(d.rows, 4) * d.q_stride;
  const std::int64_t widened =
      std::is_same_v<T, float> ? 0 : (end - begin) * (p.head_size + p.value_size);
  float* scratch = thread_scratch_of<float>(
      static_cast<std::size_t>(queries + widened +
                               kDecodeKeys * (2 * layout.stride + layout.value_width)),
      kScratchSlot);
  pack_queries(p, r, d, head.query_scale, scratch);
  d.q = scratch;
  head.scratch = scratch + queries;
  float* wide = head.scratch + kDecodeKeys * (2 * layout.stride + layout.value_width);
  head.k =
      wide_rows(table, p.k.at(p.keys, r.b, kv), p.k.token_stride, begin, end, p.head_size, wide);
  head.v = wide_rows(table, p.v.at(p.keys, r.b, kv), p.v.token_stride, begin, end, p.value_size,
                     wide + (end - begin) * p.head_size);
  d.first_key = begin;
  table.decode(d, begin, end);
}

// out and lse of one row from its parts in order.
template <class T>
void join_parts(const AttentionProblem<T>& p, const Rows& r, std::int64_t row, std::int64_t lanes,
                const float* results) {
  const PartLayout layout = layout_of(p, r, lanes);
  const std::int64_t parts = parts_of(p.keys.length(r.b)).count, n = p.queries.length(r.b);
  const float* first = results + r.result;
  float largest = -kInfinity;
  for (std::int64_t part = 0; part < parts; ++part)
    largest = std::max(largest, first[part * layout.size() + row]);
  const std::int64_t h = r.head + row / n, i = row % n;
  T* to = p.out.at(p.queries, r.b, h) + i * p.out.token_stride;
  float* out = thread_scratch_of<float>(static_cast<std::size_t>(p.value_size), kScratchSlot);
  std::fill_n(out, p.value_size, 0.0f);
  double sum = 0;
  for (std::int64_t part = 0; part < parts; ++part) {
    const float* result = first + part * layout.size();
    const double total = result[layout.stride + row];
    if (total == 0) continue;  // NaN is not
    const double weight = std::exp2(static_cast<double>(result[row]) - largest);
    sum += weight * total;
    const float* values = result + 2 * layout.stride + row * layout.value_width;
    const auto factor = static_cast<float>(weight);
    for (std::int64_t c = 0; c < p.value_size; ++c) out[c] += factor * values[c];
  }
  p.lse_at(r.b, h)[i] =
      sum == 0 ? -kInfinity : static_cast<float>((largest + std::log2(sum)) * kLn2);
  const auto inverse = sum == 0 ? 0.0f : static_cast<float>(1 / sum);
  for (std::int64_t c = 0; c < p.value_size; ++c)
    to[c] = from_double<T>(static_cast<double>(out[c] * inverse));
}

}  // namespace

template <class T>
bool is_decoded(const AttentionProblem<T>& p, std::int64_t b) {
  const std::int64_t n = p.queries.length(b);
  return n >= 1 && n <= kMostQueries && p.keys.length(b) >= kLeastKeys && !p.dropout.active();
}

template <class T>
std::string decode_refusal(const AttentionProblem<T>& p) {
  if (p.dropout.active()) return "it has no dropout";
  for (std::int64_t b = 0; b < p.batch; ++b)
    if (!is_decoded(p, b))
      return fmt::format(
          "it is for 1 to {} queries and at least {} keys, sequence {} has {} and {}", kMostQueries,
          kLeastKeys, b, p.queries.length(b), p.keys.length(b));
  return p.batch == 0 ? "there is no sequence" : "";
}

template <class T>
void decode_forward(const FlashTable& table, const AttentionProblem<T>& p) {
  std::int64_t total = 0;
  const std::vector<Rows> rows = rows_to_decode(p, table.lanes, &total);
  if (rows.empty()) return;
  // The rows of one sequence lie side by side in `rows`.
  struct Item {
    std::size_t first, last;  // rows [first, last)
    std::int64_t begin, end;  // parts, or rows of queries
  };
  std::vector<Item> items, results;
  for (std::size_t first = 0, last = 0; first < rows.size(); first = last) {
    while (last < rows.size() && rows[last].b == rows[first].b) ++last;
    const std::int64_t parts = parts_of(p.keys.length(rows[first].b)).count;
    for (std::int64_t part = 0; part < parts; part += kItemParts)
      items.push_back({first, last, part, std::min(parts, part + kItemParts)});
    for (std::size_t r = first; r < last; ++r)
      results.push_back({r, r + 1, 0, layout_of(p, rows[r], table.lanes).rows});
  }
  const Workspace<float> memory(total);
  parallel_for(static_cast<std::int64_t>(items.size()), [&](std::int64_t at) {
    const Item& item = items[static_cast<std::size_t>(at)];
    for (std::int64_t part = item.begin; part < item.end; ++part)
      for (std::size_t r = item.first; r < item.last; ++r)
        decode_part(table, p, rows[r], part, memory.data());
  });
  parallel_for(static_cast<std::int64_t>(results.size()), [&](std::int64_t at) {
    const Item& item = results[static_cast<std::size_t>(at)];
    for (std::int64_t row = item.begin; row < item.end; ++row)
      join_parts(p, rows[item.first], row, table.lanes, memory.data());
  });
}

template bool is_decoded(const AttentionProblem<float>&, std::int64_t);
template std::string decode_refusal(const AttentionProblem<float>&);
template void decode_forward(const FlashTable&, const AttentionProblem<float>&);
template bool is_decoded(const AttentionProblem<BFloat16>&, std::int64_t);
template std::string decode_refusal(const AttentionProblem<BFloat16>&);
template void decode_forward(const FlashTable&, const AttentionProblem<BFloat16>&);
template bool is_decoded(const AttentionProblem<Float16>&, std::int64_t);
template std::string decode_refusal(const AttentionProblem<Float16>&);
template void decode_forward(const FlashTable&, const AttentionProblem<Float16>&);

}  // namespace qkv::inline v0::kernels
