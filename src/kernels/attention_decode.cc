#include "kernels/attention_decode.h"

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include <fmt/format.h>

#include "qkv/dtype.h"

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
constexpr std::int64_t kItemParts = 2;
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
  std::int64_t query;   // likewise its packed queries
};

// One part's result: maxima, sums, then values; see FlashDecode.
struct PartLayout {
  std::int64_t stride, value_width, rows;
  std::int64_t size() const { return 2 * stride + round_up(rows, 4) * value_width; }
};
template <class T>
PartLayout layout_of(const AttentionProblem<T>& p, const Rows& r, std::int64_t lanes) {
  const std::int64_t rows = r.heads * p.queries.length(r.b);
  return {round_up(rows, lanes), round_up(p.value_size, lanes), rows};
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

// Whether keys and values are read as they are stored, in bf16.
template <class T>
bool is_brain(const AttentionProblem<T>& p, const Rows& r, std::int64_t lanes) {
  return std::is_same_v<T, BFloat16> && r.heads * p.queries.length(r.b) <= kDotRows &&
         p.head_size % (2 * lanes) == 0 && p.value_size % (2 * lanes) == 0;
}

// Channel c of a row in fp32, for up to `depth` of them, to or from the order of brain_channel.
template <class Move>
void for_channels(std::int64_t depth, bool brain, std::int64_t lanes, const Move& move) {
  if (!brain) {
    for (std::int64_t c = 0; c < depth; ++c) move(c, c);
    return;
  }
  for (std::int64_t first = 0; first < depth; first += 2 * lanes)
    for (std::int64_t c = 0; c < lanes; ++c) {
      move(first + 2 * c, first + c);
      move(first + 2 * c + 1, first + lanes + c);
    }
}

// Scaled queries as the kernel wants them: rows in whole registers, or transposed.
struct QueryLayout {
  bool transposed, brain;
  std::int64_t tile, stride, floats;
};
template <class T>
QueryLayout query_layout(const AttentionProblem<T>& p, const Rows& r, std::int64_t lanes) {
  const std::int64_t rows = r.heads * p.queries.length(r.b);
  QueryLayout q{rows > kDotRows, is_brain(p, r, lanes), 0, round_up(p.head_size, lanes), 0};
  q.tile = round_up(rows, q.transposed ? lanes : 4);
  q.floats = round_up(q.tile * (q.transposed ? p.head_size : q.stride), lanes);
  return q;
}
template <class T>
void pack_queries(const AttentionProblem<T>& p, const Rows& r, double scale, std::int64_t lanes,
                  float* to) {
  const QueryLayout layout = query_layout(p, r, lanes);
  const std::int64_t n = p.queries.length(r.b), rows = r.heads * n;
  const auto factor = static_cast<float>(scale);
  std::fill_n(to, layout.floats, 0.0f);
  for (std::int64_t row = 0; row < rows; ++row) {
    const T* q = p.q.at(p.queries, r.b, r.head + row / n) + row % n * p.q.token_stride;
    float* first = layout.transposed ? to + row : to + row * layout.stride;
    const std::int64_t step = layout.transposed ? layout.tile : 1;
    for_channels(p.head_size, layout.brain, lanes, [&](std::int64_t c, std::int64_t at) {
      first[at * step] = from_double<float>(to_double(q[c])) * factor;
    });
  }
}

// Heads that share a key/value head, as many as fit the lanes of a tile. total: floats that they
// need.
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
        all.push_back({b, kv * group + g, std::min(most, group - g), *total, 0});
        Rows& r = all.back();
        *total += parts_of(p.keys.length(b)).count * layout_of(p, r, lanes).size();
        r.query = *total;
        *total += query_layout(p, r, lanes).floats;
      }
  }
  return all;
}

// Keys of a part that any of the queries sees by window and causal.
template <class T>
FlashRange keys_of_part(const AttentionProblem<T>& p, const Rows& r, std::int64_t part) {
  const Parts parts = parts_of(p.keys.length(r.b));
  const std::int64_t begin = std::max(part * parts.size, p.key_begin(r.b, 0));
  const std::int64_t end = p.key_end(r.b, p.queries.length(r.b) - 1);
  return {begin, std::max(begin, std::min((part + 1) * parts.size, end))};
}

// Rows of keys or values from `begin` on.
template <class T>
DecodeRows stored_rows(const AttentionProblem<T>& p, const AttentionOperand<const T>& operand,
                       const Rows& r, std::int64_t begin) {
  return {operand.at(p.keys, r.b, r.head / p.group()) + begin * operand.token_stride,
          operand.token_stride};
}
// The same widened to fp32, in `to`.
template <class T>
DecodeRows wide_rows(const FlashTable& table, const DecodeRows& stored, std::int64_t count,
                     std::int64_t depth, float* to) {
  if constexpr (!std::is_same_v<T, float>)
    table.widen(narrow_rows(static_cast<const T*>(stored.data), stored.stride), count, depth, to);
  return {to, depth};
}

std::int64_t bytes_between(const DecodeRows& from, const DecodeRows& to) {
  return reinterpret_cast<std::intptr_t>(to.data) - reinterpret_cast<std::intptr_t>(from.data);
}

// Rows and part that are worked on together.
struct Unit {
  const Rows* rows;
  std::int64_t part;
};

// next: whose keys and values are fetched meanwhile; no rows: nobody's.
template <class T>
void decode_part(const FlashTable& table, const AttentionProblem<T>& p, const Unit& unit,
                 const Unit& next, float* memory) {
  const Rows& r = *unit.rows;
  const std::int64_t n = p.queries.length(r.b);
  const PartLayout layout = layout_of(p, r, table.lanes);
  float* result = memory + r.result + unit.part * layout.size();
  const FlashRange keys = keys_of_part(p, r, unit.part);
  const std::int64_t count = keys.end - keys.begin;

  FlashDecode d{};
  d.rows = layout.rows;
  const QueryLayout queries = query_layout(p, r, table.lanes);
  d.transposed = queries.transposed;
  d.brain = queries.brain;
  d.q_stride = queries.stride;
  d.q = memory + r.query;
  d.maximum = result;
  d.sum = result + layout.stride;
  d.out = result + 2 * layout.stride;
  FlashHead& head = d.head;
  head.left = head.right = -1;  // the bias tile knows
  head.head_size = p.head_size;
  head.value_size = p.value_size;
  head.tile = queries.tile;
  set_scales(head, p.scale, p.softcap, 0);  // likewise the slopes
  const AttentionWindow band = {p.mask.left, p.mask.right};
  DecodeContext context{{&p.mask, r.b, r.head, p.keys.length(r.b) - n, nullptr}, r.heads, n};
  context.first.band = &band;
  context.first.with_slopes = p.mask.slopes != nullptr;
  head.fill_bias = fill_rows;
  head.bias_context = &context;
  const bool stored = std::is_same_v<T, float> || d.brain;
  const std::int64_t buffers =
      kDecodeKeys * (2 * std::max(head.tile, table.lanes) + layout.value_width);
  head.scratch = thread_scratch_of<float>(
      static_cast<std::size_t>(buffers + (stored ? 0 : count * (p.head_size + p.value_size))),
      kScratchSlot);
  d.k = stored_rows(p, p.k, r, keys.begin);
  d.v = stored_rows(p, p.v, r, keys.begin);
  if (!stored) {
    float* wide = head.scratch + buffers;
    d.k = wide_rows<T>(table, d.k, count, p.head_size, wide);
    d.v = wide_rows<T>(table, d.v, count, p.value_size, wide + count * p.head_size);
  } else if (next.rows != nullptr) {
    const FlashRange ahead = keys_of_part(p, *next.rows, next.part);
    d.ahead_k = bytes_between(d.k, stored_rows(p, p.k, *next.rows, ahead.begin));
    d.ahead_v = bytes_between(d.v, stored_rows(p, p.v, *next.rows, ahead.begin));
  }
  d.first_key = keys.begin;
  table.decode(d, keys.begin, keys.end);
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
  for_channels(p.value_size, is_brain(p, r, lanes), lanes, [&](std::int64_t c, std::int64_t at) {
    to[c] = from_double<T>(static_cast<double>(out[at] * inverse));
  });
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
  FlashHead scales{};
  set_scales(scales, p.scale, p.softcap, 0);
  for (const Rows& r : rows)
    pack_queries(p, r, scales.query_scale, table.lanes, memory.data() + r.query);
  parallel_for(static_cast<std::int64_t>(items.size()), [&](std::int64_t at) {
    const Item& item = items[static_cast<std::size_t>(at)];
    for (std::int64_t part = item.begin; part < item.end; ++part)
      for (std::size_t r = item.first; r < item.last; ++r) {
        Unit next{nullptr, 0};
        if (r + 1 < item.last)
          next = {&rows[r + 1], part};
        else if (part + 1 < item.end)
          next = {&rows[item.first], part + 1};
        decode_part(table, p, {&rows[r], part}, next, memory.data());
      }
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
