#include "kernels/attention_flash.h"

#include <algorithm>
#include <vector>

#include "base/memory.h"
#include "base/thread_pool.h"
#include "kernels/attention_list.h"

namespace qkv::inline v0::kernels {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLowest = std::numeric_limits<float>::lowest();
constexpr double kLog2E = 1.4426950408889634;
constexpr int kScratchSlot = 5;

// Multiply-adds that a work item should have, and what a head costs besides its products.
constexpr std::int64_t kItemWork = std::int64_t{1} << 18;
constexpr std::int64_t kHeadWork = std::int64_t{1} << 12;

std::int64_t round_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }

// ---- Mask arrays ----------------------------------------------------------------------------

struct BiasContext {
  const AttentionMask* mask;
  std::int64_t b, h;
};

// What one element of an array adds, in the log2 domain.
float element_bias(const AttentionMaskArray& array, std::int64_t at) {
  if (array.kind == AttentionMaskArray::Kind::kAdditive) {
    const double value = array.value(at);
    // A finite minimum must not become the -inf that blocks.
    return value == -kInfinity ? -kInfinity
                               : static_cast<float>(std::max<double>(value * kLog2E, kLowest));
  }
  return array.is_nonzero(at) == (array.kind == AttentionMaskArray::Kind::kKeep) ? 0 : -kInfinity;
}

void add_bias(float& sum, float bias) {
  if (bias == -kInfinity)
    sum = bias;
  else if (sum != -kInfinity)
    sum = std::max(sum + bias, kLowest);
}

FlashBias fill_bias(const void* context, const FlashTile& tile, float* bias) {
  const auto& c = *static_cast<const BiasContext*>(context);
  for (std::int64_t r = 0; r < tile.keys; ++r)
    std::fill(bias + r * tile.stride, bias + (r + 1) * tile.stride, 0.0f);
  for (int a = 0; a < c.mask->array_count; ++a) {
    const AttentionMaskArray& array = c.mask->arrays[a];
    for (std::int64_t r = 0; r < tile.keys; ++r) {
      float* row = bias + r * tile.stride;
      const std::int64_t at = array.offset(c.b, c.h, tile.first_query, tile.first_key + r);
      const bool same = array.strides[2] == 0;  // one value for all queries
      const float first = same ? element_bias(array, at) : 0;
      for (std::int64_t i = 0; i < tile.queries; ++i)
        add_bias(row[i], same ? first : element_bias(array, at + i * array.strides[2]));
    }
  }
  std::int64_t open = 0, blocked = 0;
  for (std::int64_t r = 0; r < tile.keys; ++r)
    for (std::int64_t i = 0; i < tile.queries; ++i) {
      open += bias[r * tile.stride + i] == 0;
      blocked += bias[r * tile.stride + i] == -kInfinity;
    }
  const std::int64_t all = tile.keys * tile.queries;
  return open == all      ? FlashBias::kOpen
         : blocked == all ? FlashBias::kBlocked
                          : FlashBias::kPartial;
}

// ---- Heads ----------------------------------------------------------------------------------

using Problem = AttentionProblem<float>;

FlashRows rows(const AttentionOperand<const float>& operand, const AttentionSequences& sequences,
               std::int64_t b, std::int64_t h) {
  if (operand.data == nullptr) return {nullptr, 0};
  return {operand.at(sequences, b, h), operand.token_stride};
}
FlashOutput rows(const AttentionOperand<float>& operand, const AttentionSequences& sequences,
                 std::int64_t b, std::int64_t h) {
  if (operand.data == nullptr) return {nullptr, 0};
  return {operand.at(sequences, b, h), operand.token_stride};
}

// Equal tiles of whole registers; a function of the length alone.
std::int64_t tile_width(std::int64_t queries, std::int64_t lanes) {
  const std::int64_t tiles =
      std::max<std::int64_t>(1, (queries + kFlashQueries - 1) / kFlashQueries);
  return std::max(lanes, round_up((queries + tiles - 1) / tiles, lanes));
}

FlashHead make_head(const Problem& p, std::int64_t b, std::int64_t h, std::int64_t lanes) {
  const std::int64_t kv = h / p.group();
  FlashHead head{};
  head.q = rows(p.q, p.queries, b, h);
  head.k = rows(p.k, p.keys, b, kv);
  head.v = rows(p.v, p.keys, b, kv);
  head.dout = rows(p.dout, p.queries, b, h);
  head.out = rows(p.out, p.queries, b, h);
  head.dq = rows(p.dq, p.queries, b, h);
  head.dk = rows(p.dk, p.keys, b, kv);
  head.dv = rows(p.dv, p.keys, b, kv);
  head.lse = p.lse_at(b, h);
  head.queries = p.queries.length(b);
  head.keys = p.visible_keys(b);
  head.offset = p.keys.length(b) - head.queries;
  head.left = p.mask.left;
  head.right = p.mask.right;
  head.head_size = p.head_size;
  head.value_size = p.value_size;
  head.tile = tile_width(head.queries, lanes);
  head.scale = static_cast<float>(p.scale);
  head.add_to_kv = h % p.group() != 0;
  head.dropout = p.dropout.active();
  head.threshold =
      static_cast<std::uint32_t>(std::min<std::uint64_t>(p.dropout.threshold, 0xFFFFFFFFu));
  head.sample = p.dropout.sample(b);
  head.step = p.dropout.step;
  head.head = static_cast<std::uint32_t>(h);
  head.keep_scale = static_cast<float>(p.dropout.keep_scale);
  head.key = p.dropout.key;
  return head;
}

// Floats of scratch: the layouts are forward_buffers and backward_buffers in kernels/simd.
std::int64_t forward_scratch(const FlashHead& h, std::int64_t lanes) {
  const std::int64_t value_width = round_up(h.value_size, lanes);
  return h.head_size * h.tile + kForwardKeys * (2 * h.tile + value_width) + h.tile * value_width;
}
std::int64_t backward_scratch(const FlashHead& h, std::int64_t lanes) {
  const std::int64_t padded = round_up(h.queries, h.tile);
  const std::int64_t head_width = round_up(h.head_size, lanes);
  const std::int64_t value_width = round_up(h.value_size, lanes);
  return padded * (h.head_size + h.value_size + 2 + head_width) + kBackwardKeys * 4 * h.tile +
         (2 * kBackwardKeys + h.tile) * (head_width + value_width);
}

// ---- Work -----------------------------------------------------------------------------------

// Heads [head, head_end) of sequences [b, b_end), query tiles [tile, tile_end) of each (forward).
struct Item {
  std::int64_t b, b_end, head, head_end, tile, tile_end;
};

// Short sequences share items; longer ones are cut by head. `heads` counts query heads forward and
// key/value heads backward. Heaviest first does not matter for the bits, only for the balance.
std::vector<Item> plan(const Problem& p, std::int64_t heads, std::int64_t lanes, bool cut_tiles) {
  std::vector<Item> items;
  Item open{0, 0, 0, heads, 0, kFlashQueries << 32};
  std::int64_t open_work = 0;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const std::int64_t n = p.queries.length(b), s = p.keys.length(b);
    const std::int64_t head_work = n * s * (p.head_size + p.value_size) + kHeadWork;
    if (head_work * p.heads <= kItemWork * 2) {
      if (open_work == 0) open.b = b;
      open.b_end = b + 1;
      open_work += head_work * p.heads;
      if (open_work < kItemWork && b + 1 < p.batch) continue;
    }
    if (open_work > 0) items.push_back(open);
    open_work = 0;
    if (open.b_end == b + 1) continue;
    const std::int64_t width = tile_width(n, lanes), tiles = (n + width - 1) / width;
    const std::int64_t tile_work =
        std::max<std::int64_t>(1, head_work / std::max<std::int64_t>(tiles, 1));
    const std::int64_t step = cut_tiles ? std::clamp<std::int64_t>(kItemWork * 4 / tile_work, 1,
                                                                   std::max<std::int64_t>(tiles, 1))
                                        : std::max<std::int64_t>(tiles, 1);
    for (std::int64_t tile = (std::max<std::int64_t>(tiles, 1) - 1) / step * step; tile >= 0;
         tile -= step)
      for (std::int64_t h = 0; h < heads; ++h)
        items.push_back({b, b + 1, h, h + 1, tile, std::min(tile + step, tiles)});
  }
  return items;
}

void zero_hidden_keys(const FlashOutput& to, std::int64_t begin, std::int64_t end,
                      std::int64_t depth) {
  for (std::int64_t j = begin; j < end; ++j)
    std::fill(to.data + j * to.stride, to.data + j * to.stride + depth, 0.0f);
}

void forward(const FlashTable& table, const Problem& p) {
  const std::vector<Item> items = plan(p, p.heads, table.lanes, true);
  parallel_for(static_cast<std::int64_t>(items.size()), [&](std::int64_t index) {
    const Item& item = items[static_cast<std::size_t>(index)];
    for (std::int64_t b = item.b; b < item.b_end; ++b)
      for (std::int64_t h = item.head; h < item.head_end; ++h) {
        FlashHead head = make_head(p, b, h, table.lanes);
        const BiasContext context{&p.mask, b, h};
        if (p.mask.array_count > 0) head.fill_bias = fill_bias;
        head.bias_context = &context;
        head.scratch = thread_scratch_of<float>(
            static_cast<std::size_t>(forward_scratch(head, table.lanes)), kScratchSlot);
        const std::int64_t end = std::min(head.queries, item.tile_end * head.tile);
        for (std::int64_t first = item.tile * head.tile; first < end; first += head.tile)
          table.forward(head, first, std::min(head.tile, head.queries - first));
      }
  });
}

void backward(const FlashTable& table, const Problem& p) {
  const std::vector<Item> items = plan(p, p.kv_heads, table.lanes, false);
  parallel_for(static_cast<std::int64_t>(items.size()), [&](std::int64_t index) {
    const Item& item = items[static_cast<std::size_t>(index)];
    for (std::int64_t b = item.b; b < item.b_end; ++b)
      for (std::int64_t h = item.head * p.group(); h < item.head_end * p.group(); ++h) {
        FlashHead head = make_head(p, b, h, table.lanes);
        const BiasContext context{&p.mask, b, h};
        if (p.mask.array_count > 0) head.fill_bias = fill_bias;
        head.bias_context = &context;
        head.scratch = thread_scratch_of<float>(
            static_cast<std::size_t>(backward_scratch(head, table.lanes)), kScratchSlot);
        if (!head.add_to_kv) {
          zero_hidden_keys(head.dk, head.keys, p.keys.length(b), p.head_size);
          zero_hidden_keys(head.dv, head.keys, p.keys.length(b), p.value_size);
        }
        table.backward(head);
      }
  });
}

}  // namespace

void flash_forward(const FlashTable& table, const AttentionProblem<float>& problem) {
  forward(table, problem);
}
void flash_backward(const FlashTable& table, const AttentionProblem<float>& problem) {
  backward(table, problem);
}

}  // namespace qkv::inline v0::kernels
