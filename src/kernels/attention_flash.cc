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
#include "kernels/narrow_rows.h"

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
// Most floats that their shares of dq should take while they run side by side.
constexpr std::int64_t kShareFloats = std::int64_t{1} << 21;

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

void take_narrow(FlashHead& head, const Problem& p, std::int64_t b, std::int64_t h) {
  const auto input = [&](const AttentionOperand<const BFloat16>& x,
                         const AttentionSequences& sequences, std::int64_t index) {
    if (x.data == nullptr) return NarrowRows{};
    return narrow_rows(x.at(sequences, b, index), x.token_stride);
  };
  const NarrowOperands& from = *p.narrow;
  const std::int64_t kv = h / p.group();
  head.narrow_q = input(from.q, p.queries, h);
  head.narrow_k = input(from.k, p.keys, kv);
  head.narrow_v = input(from.v, p.keys, kv);
  head.narrow_dout = input(from.dout, p.queries, h);
  if (from.out.data == nullptr) return;
  BFloat16* out = from.out.at(p.queries, b, h);
  head.narrow_out = narrow_output(out, from.out.token_stride);
  head.narrow_o = narrow_rows(out, from.out.token_stride);
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
  if (p.narrow) take_narrow(head, p, b, h);
  head.lse = p.lse_at(b, h);
  head.dlse = p.dlse_at(b, h);
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
std::int64_t forward_scratch(const FlashTable& table, const FlashHead& h) {
  if (table.forward_scratch) return table.forward_scratch(h);
  const std::int64_t lanes = table.lanes;
  const std::int64_t head_width = round_up(h.head_size, lanes);
  const std::int64_t value_width = round_up(h.value_size, lanes);
  const std::int64_t group = std::min(kForwardTiles * h.tile, round_up(h.queries, h.tile));
  return kForwardKeys * (2 * h.tile + head_width + value_width) +
         group * (h.head_size + value_width);
}
std::int64_t backward_scratch(const FlashTable& table, const FlashHead& h) {
  if (table.backward_scratch) return table.backward_scratch(h);
  const std::int64_t lanes = table.lanes;
  const std::int64_t padded = round_up(std::min(h.queries, backward_queries(h.tile)), h.tile);
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
               std::int64_t (*scratch)(const FlashTable&, const FlashHead&), const Body& body) {
  FlashHead head = make_head(p, b, h, table.lanes);
  const BiasContext context{&p.mask, b, h, head.offset, dbias, nullptr, false};
  if (p.mask.has_bias()) head.fill_bias = fill_bias;
  if (dbias) head.add_bias_gradient = add_bias_gradient;
  head.bias_context = &context;
  head.scratch =
      thread_scratch_of<float>(static_cast<std::size_t>(scratch(table, head)), kScratchSlot);
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

// Whether its parts may run side by side: with queries, since dk and dv of the keys are begun by
// them.
bool is_cut(const Problem& p, std::int64_t b) {
  return p.queries.length(b) > 0 && key_parts(p.visible_keys(b)).count > 1;
}

// A key/value head of a sequence.
struct KeyHead {
  std::int64_t b, kv;
};

// Queries of the heads of one key/value head against parts [first, last) of its keys, in runs that
// scratch memory holds. With `partial` the share of dq (of one part) goes there,
// [group][queries][D], else to dq itself. dk and dv are begun by the queries from 0 on.
void backward_run(const FlashTable& table, const Problem& p, const KeyHead& at, FlashRange queries,
                  FlashRange parts, float* partial, const AttentionBiasGradient* dbias) {
  const std::int64_t n = p.queries.length(at.b), group = p.group(), d = p.head_size;
  const KeyParts cut = key_parts(p.visible_keys(at.b));
  const std::int64_t step = backward_queries(tile_width(n, table.lanes));
  std::int64_t first = queries.begin;
  do {
    const FlashRange run = {first, std::min(queries.end, first + step)};
    for (std::int64_t g = 0; g < group; ++g)
      with_head(table, p, at.b, at.kv * group + g, dbias, backward_scratch, [&](FlashHead& head) {
        head.part = cut.size;
        head.add_to_kv = g != 0 || first != 0;
        if (partial)
          head.dq = {partial + (g * (queries.end - queries.begin) + first - queries.begin) * d, d};
        else
          head.dq.data += first * head.dq.stride;
        table.backward(head, run,
                       {std::min(head.keys, parts.begin * cut.size),
                        std::min(head.keys, parts.end * cut.size)});
        if (g != 0 || first != 0 || parts.begin != 0) return;
        zero_hidden_keys(head.dk, head.keys, p.keys.length(at.b), p.head_size);
        zero_hidden_keys(head.dv, head.keys, p.keys.length(at.b), p.value_size);
      });
    first = run.end;
  } while (first < queries.end);
}
void backward_all(const FlashTable& table, const Problem& p, const KeyHead& at,
                  const AttentionBiasGradient* dbias) {
  backward_run(table, p, at, {0, p.queries.length(at.b)},
               {0, key_parts(p.visible_keys(at.b)).count}, nullptr, dbias);
}

// dq of queries from the shares of the parts, [parts][group][count][D].
void sum_shares(const Problem& p, const KeyHead& at, FlashRange queries, std::int64_t parts,
                const float* shares) {
  const std::int64_t count = queries.end - queries.begin, d = p.head_size;
  const std::int64_t share = p.group() * count * d;
  parallel_chunks(p.group() * count, 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int64_t h = at.kv * p.group() + row / count, i = queries.begin + row % count;
      float* to = p.dq.at(p.queries, at.b, h) + i * p.dq.token_stride;
      const float* from = shares + row * d;
      std::copy(from, from + d, to);
      for (std::int64_t part = 1; part < parts; ++part)
        for (std::int64_t c = 0; c < d; ++c) to[c] += from[part * share + c];
    }
  });
}

// One part of one key/value head in a round of backward_in_parallel.
struct PartWork {
  KeyHead at;
  FlashRange queries;
  std::int64_t part, parts;
  float* share;
};

// Few key/value heads with their parts side by side: for long sequences. dq is the sum of the
// shares in order, as when the parts run one after another. The queries go through in rounds of
// whole runs, so that the shares stay within kShareFloats; the rounds change no bit.
void backward_in_parallel(const FlashTable& table, const Problem& p,
                          const std::vector<KeyHead>& heads, const AttentionBiasGradient* dbias) {
  const auto queries_of = [&](const KeyHead& at, std::int64_t run) {
    const std::int64_t n = p.queries.length(at.b);
    return std::min(n, run * backward_queries(tile_width(n, table.lanes)));
  };
  std::int64_t row_floats = 0, longest = 0;
  for (const KeyHead& at : heads) {
    row_floats += key_parts(p.visible_keys(at.b)).count * p.group() * p.head_size;
    longest = std::max(longest, p.queries.length(at.b));
  }
  if (longest == 0) return;
  std::int64_t runs = 1;  // of a round
  while (runs * kBackwardQueries < longest &&
         2 * runs * kBackwardQueries * row_floats <= kShareFloats)
    runs *= 2;
  const Workspace<float> memory(
      row_floats * std::min(longest, runs * std::max(kBackwardQueries, kFlashQueries)));
  std::vector<PartWork> works(1);
  for (std::int64_t run = 0; !works.empty(); run += runs) {
    works.clear();
    float* share = memory.data();
    for (const KeyHead& at : heads) {
      const FlashRange queries = {queries_of(at, run), queries_of(at, run + runs)};
      const std::int64_t parts = key_parts(p.visible_keys(at.b)).count;
      for (std::int64_t part = 0; part < parts && queries.begin < queries.end; ++part) {
        works.push_back({at, queries, part, parts, share});
        share += p.group() * (queries.end - queries.begin) * p.head_size;
      }
    }
    parallel_for(static_cast<std::int64_t>(works.size()), [&](std::int64_t index) {
      const PartWork& work = works[static_cast<std::size_t>(index)];
      backward_run(table, p, work.at, work.queries, {work.part, work.part + 1}, work.share, dbias);
    });
    for (const PartWork& work : works)
      if (work.part == 0) sum_shares(p, work.at, work.queries, work.parts, work.share);
  }
}

// A key/value head with all its parts, and the gradient of the bias. alone: on the pool.
void backward_with_bias(const FlashTable& table, const Problem& p, const KeyHead& at,
                        const AttentionBiasGradient& sum, bool alone) {
  // Parts add to the same elements where one stands for all keys.
  if (alone && sum.strides[3] != 0 && is_cut(p, at.b))
    return backward_in_parallel(table, p, {at}, &sum);
  backward_all(table, p, at, &sum);
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
  if (!p.narrow) decode_forward(table, p);  // else it is done
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
    return sum_bias_gradient(
        p.dbias, p.batch, p.kv_heads,
        [&](std::int64_t b, std::int64_t kv, const AttentionBiasGradient& sum, bool alone) {
          backward_with_bias(table, p, {b, kv}, sum, alone);
        });
  const std::vector<Item> items = plan(
      p, p.kv_heads, table.lanes, [](std::int64_t) { return true; },
      [](std::int64_t) { return std::int64_t{1}; });
  const auto size = static_cast<std::int64_t>(items.size());
  const bool few = size < 4 * num_threads();
  std::vector<KeyHead> cut;
  if (few)
    for (const Item& item : items)
      if (is_cut(p, item.b)) cut.push_back({item.b, item.head});
  backward_in_parallel(table, p, cut, nullptr);
  parallel_for(size, [&](std::int64_t index) {
    const Item& item = items[static_cast<std::size_t>(index)];
    if (few && is_cut(p, item.b)) return;
    for (std::int64_t b = item.b; b < item.b_end; ++b)
      for (std::int64_t kv = item.head; kv < item.head_end; ++kv)
        backward_all(table, p, {b, kv}, nullptr);
  });
}

void flash_add_backward(const FlashTable& table, const AttentionProblem<float>& p) {
  backward_with_bias(table, p, {0, 0}, p.dbias, !in_parallel());
}

}  // namespace qkv::inline v0::kernels
