#include "kernels/attention_flash.h"

#include <algorithm>
#include <vector>

#include "qkv/threads.h"

#include "base/memory.h"
#include "base/thread_pool.h"
#include "kernels/attention_bias.h"
#include "kernels/attention_decode.h"
#include "kernels/attention_list.h"
#include "kernels/attention_workspace.h"

namespace qkv::inline v0::kernels {

namespace {

constexpr float kLog2E = 1.44269504088896340736f;
constexpr int kScratchSlot = 5;

// Multiply-adds that a work item should have, and what a head costs besides its products.
constexpr std::int64_t kItemWork = std::int64_t{1} << 18;
constexpr std::int64_t kHeadWork = std::int64_t{1} << 12;

// Keys from which on a sequence is worth a part of its own, and most parts.
constexpr std::int64_t kPartKeys = 512;
constexpr std::int64_t kMaxParts = 8;

std::int64_t round_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }

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
  set_scales(head, p.scale, p.softcap, p.mask.slopes ? p.mask.slopes[h] : 0);
  head.add_to_kv = h % p.group() != 0;
  head.dropout = p.dropout.active();
  head.threshold =
      static_cast<std::uint32_t>(std::min<std::uint64_t>(p.dropout.threshold, 0xFFFFFFFFu));
  head.sample = p.dropout.sample(b);
  head.step = p.dropout.step;
  head.head = static_cast<std::uint32_t>(p.dropout.first_head + h);
  head.keep_scale = static_cast<float>(p.dropout.keep_scale);
  head.key = p.dropout.key;
  return head;
}

// Floats of scratch: the layouts are forward_buffers and backward_buffers in kernels/simd.
std::int64_t forward_scratch(const FlashHead& h, std::int64_t lanes) {
  const std::int64_t head_width = round_up(h.head_size, lanes);
  const std::int64_t value_width = round_up(h.value_size, lanes);
  return h.head_size * h.tile + kForwardKeys * (2 * h.tile + value_width) + h.tile * value_width +
         h.keys * (head_width + value_width);
}
std::int64_t backward_scratch(const FlashHead& h, std::int64_t lanes) {
  const std::int64_t padded = round_up(h.queries, h.tile);
  const std::int64_t head_width = round_up(h.head_size, lanes);
  const std::int64_t value_width = round_up(h.value_size, lanes);
  return padded * (h.head_size + h.value_size + 2 + 2 * head_width + value_width) +
         kBackwardKeys * (5 * h.tile + 2 * head_width + 2 * value_width);
}

// ---- Work -----------------------------------------------------------------------------------

// Sequences [b, b_end) with heads [head, head_end) each; forward: queries [begin, end) of them.
struct Item {
  std::int64_t b, b_end, head, head_end, begin, end;
};
constexpr std::int64_t kAll = std::int64_t{1} << 60;

// Short sequences with all their heads share items; the heads of longer ones have their own, cut
// into up to `pieces(tiles)` runs of tiles. The cut has no influence on any bit.
template <class IsPlanned, class Pieces>
std::vector<Item> plan(const Problem& p, std::int64_t heads, std::int64_t lanes,
                       const IsPlanned& is_planned, const Pieces& pieces) {
  std::vector<Item> items, shared;
  std::int64_t shared_work = 0;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    if (!is_planned(b)) continue;
    const std::int64_t n = p.queries.length(b);
    const std::int64_t work =
        p.heads * (n * p.keys.length(b) * (p.head_size + p.value_size) + kHeadWork);
    if (work <= 2 * kItemWork) {
      if (shared.empty() || shared_work >= kItemWork || shared.back().b_end != b) {
        shared.push_back({b, b, 0, heads, 0, kAll});
        shared_work = 0;
      }
      shared.back().b_end = b + 1;
      shared_work += work;
      continue;
    }
    const std::int64_t width = tile_width(n, lanes), tiles = (n + width - 1) / width;
    const std::int64_t cuts =
        std::clamp<std::int64_t>(pieces(tiles), 1, std::max<std::int64_t>(tiles, 1));
    const std::int64_t step = (tiles + cuts - 1) / cuts * width;
    for (std::int64_t begin = (cuts - 1) * step; begin >= 0;
         begin -= step)  // causal: heaviest first
      for (std::int64_t h = 0; h < heads; ++h)
        items.push_back({b, b + 1, h, h + 1, begin, cuts == 1 ? kAll : begin + step});
  }
  items.insert(items.end(), shared.begin(), shared.end());
  return items;
}

// Runs body(head) with what both directions share. dbias: null, or where the bias's gradient goes.
template <class Body>
void with_head(const FlashTable& table, const Problem& p, std::int64_t b, std::int64_t h,
               const AttentionBiasGradient* dbias,
               std::int64_t (*scratch)(const FlashHead&, std::int64_t), const Body& body) {
  FlashHead head = make_head(p, b, h, table.lanes);
  const BiasContext context{&p.mask, b, h, head.offset, dbias, nullptr, false};
  if (p.mask.has_bias()) head.fill_bias = fill_bias;
  if (dbias) head.add_bias_gradient = add_bias_gradient;
  head.bias_context = &context;
  head.scratch =
      thread_scratch_of<float>(static_cast<std::size_t>(scratch(head, table.lanes)), kScratchSlot);
  body(head);
}

void zero_hidden_keys(const FlashOutput& to, std::int64_t begin, std::int64_t end,
                      std::int64_t depth) {
  for (std::int64_t j = begin; j < end; ++j)
    std::fill(to.data + j * to.stride, to.data + j * to.stride + depth, 0.0f);
}

// Parts of the keys whose shares of dq are summed apart: a function of the sequence alone.
struct KeyParts {
  std::int64_t count, size;
};
KeyParts key_parts(std::int64_t keys) {
  const std::int64_t count = std::clamp<std::int64_t>(keys / kPartKeys, 1, kMaxParts);
  return {count, round_up((keys + count - 1) / count, kBackwardKeys)};
}

// The heads of key/value head `kv` and one part of its keys. With `partial` the shares of dq go
// there ([group][N][D], one part), else to dq itself.
void backward_part(const FlashTable& table, const Problem& p, std::int64_t b, std::int64_t kv,
                   std::int64_t part, float* partial, const AttentionBiasGradient* dbias) {
  for (std::int64_t g = 0; g < p.group(); ++g)
    with_head(table, p, b, kv * p.group() + g, dbias, backward_scratch, [&](FlashHead& head) {
      const KeyParts parts = key_parts(head.keys);
      head.add_to_dq = part > 0 && partial == nullptr;
      if (partial) head.dq = {partial + g * head.queries * p.head_size, p.head_size};
      const std::int64_t begin = std::min(head.keys, part * parts.size);
      table.backward(head, begin, std::min(head.keys, begin + parts.size));
      if (g != 0 || part != 0) return;
      zero_hidden_keys(head.dk, head.keys, p.keys.length(b), p.head_size);
      zero_hidden_keys(head.dv, head.keys, p.keys.length(b), p.value_size);
    });
}

// One key/value head with its parts side by side: for few, long sequences. dq is the sum of the
// shares in order, as when the parts run one after another.
void backward_in_parallel(const FlashTable& table, const Problem& p, std::int64_t b,
                          std::int64_t kv, const AttentionBiasGradient* dbias) {
  const std::int64_t n = p.queries.length(b), d = p.head_size;
  const std::int64_t parts = key_parts(p.visible_keys(b)).count, share = p.group() * n * d;
  const Workspace<float> partial(parts * share);
  parallel_for(parts, [&](std::int64_t part) {
    backward_part(table, p, b, kv, part, partial.data() + part * share, dbias);
  });
  parallel_chunks(p.group() * n, 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      float* to = p.dq.at(p.queries, b, kv * p.group() + row / n) + row % n * p.dq.token_stride;
      const float* from = partial.data() + row * d;
      std::copy(from, from + d, to);
      for (std::int64_t part = 1; part < parts; ++part)
        for (std::int64_t c = 0; c < d; ++c) to[c] += from[part * share + c];
    }
  });
}

// A key/value head with all its parts, and the gradient of the bias. alone: on the pool.
void backward_with_bias(const FlashTable& table, const Problem& p, std::int64_t b, std::int64_t kv,
                        const AttentionBiasGradient& sum, bool alone) {
  const std::int64_t parts = key_parts(p.visible_keys(b)).count;
  // Parts add to the same elements where one stands for all keys.
  if (alone && parts > 1 && sum.strides[3] != 0) return backward_in_parallel(table, p, b, kv, &sum);
  for (std::int64_t part = 0; part < parts; ++part)
    backward_part(table, p, b, kv, part, nullptr, &sum);
}

}  // namespace

void set_scales(FlashHead& head, double scale, double softcap, double slope) {
  head.scale = static_cast<float>(scale);
  head.softcap = static_cast<float>(softcap) * kLog2E;
  head.query_scale = softcap != 0 ? static_cast<float>(scale / softcap) : head.scale * kLog2E;
  head.slope = static_cast<float>(slope) * kLog2E;
}

template <>
void flash_forward(const FlashTable& table, const AttentionProblem<float>& p) {
  // A head is cut only when there are too few to keep every thread busy.
  const std::int64_t wanted = 4 * num_threads(), heads = p.batch * p.heads;
  const auto pieces = [&](std::int64_t) {
    return (wanted + heads - 1) / std::max<std::int64_t>(heads, 1);
  };
  decode_forward(table, p);
  const auto is_planned = [&](std::int64_t b) { return !is_decoded(p, b); };
  const std::vector<Item> items = plan(p, p.heads, table.lanes, is_planned, pieces);
  parallel_for(static_cast<std::int64_t>(items.size()), [&](std::int64_t index) {
    const Item& item = items[static_cast<std::size_t>(index)];
    for (std::int64_t b = item.b; b < item.b_end; ++b)
      for (std::int64_t h = item.head; h < item.head_end; ++h)
        with_head(table, p, b, h, nullptr, forward_scratch, [&](const FlashHead& head) {
          table.forward(head, item.begin, std::min(head.queries, item.end));
        });
  });
}

template <>
void flash_backward(const FlashTable& table, const AttentionProblem<float>& p) {
  if (p.dbias.data != nullptr)
    return sum_bias_gradient(p.dbias, p.batch, p.kv_heads,
                             [&](std::int64_t b, std::int64_t kv, const AttentionBiasGradient& sum,
                                 bool alone) { backward_with_bias(table, p, b, kv, sum, alone); });
  const std::vector<Item> items = plan(
      p, p.kv_heads, table.lanes, [](std::int64_t) { return true; },
      [](std::int64_t) { return std::int64_t{1}; });
  const auto size = static_cast<std::int64_t>(items.size());
  const auto parts_of = [&](std::int64_t b) { return key_parts(p.visible_keys(b)).count; };
  const bool few = size < 4 * num_threads();
  if (few)
    for (const Item& item : items)
      if (parts_of(item.b) > 1) backward_in_parallel(table, p, item.b, item.head, nullptr);
  parallel_for(size, [&](std::int64_t index) {
    const Item& item = items[static_cast<std::size_t>(index)];
    if (few && parts_of(item.b) > 1) return;
    for (std::int64_t b = item.b; b < item.b_end; ++b)
      for (std::int64_t kv = item.head; kv < item.head_end; ++kv)
        for (std::int64_t part = 0; part < parts_of(b); ++part)
          backward_part(table, p, b, kv, part, nullptr, nullptr);
  });
}

void flash_add_backward(const FlashTable& table, const AttentionProblem<float>& p) {
  backward_with_bias(table, p, 0, 0, p.dbias, !in_parallel());
}

}  // namespace qkv::inline v0::kernels
