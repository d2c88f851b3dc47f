#include "kernels/attention_flash.h"

#include <algorithm>
#include <vector>

#include "qkv/threads.h"

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

// Keys from which on a sequence is worth a part of its own, and most parts.
constexpr std::int64_t kPartKeys = 512;
constexpr std::int64_t kMaxParts = 8;

std::int64_t round_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }

// ---- Mask arrays ----------------------------------------------------------------------------

struct BiasContext {
  const AttentionMask* mask;
  std::int64_t b, h;
};

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

FlashBias fill_bias(const void* context, const FlashTile& tile, float* bias) {
  const auto& c = *static_cast<const BiasContext*>(context);
  std::fill(bias, bias + tile.keys * tile.stride, 0.0f);
  for (int a = 0; a < c.mask->array_count; ++a) join_any(c.mask->arrays[a], c, tile, bias);
  std::int32_t open = 0, blocked = 0;
  for (std::int64_t r = 0; r < tile.keys; ++r)
    for (std::int64_t i = 0; i < tile.queries; ++i) {
      open += bias[r * tile.stride + i] == 0;
      blocked += bias[r * tile.stride + i] == -kInfinity;
    }
  const std::int64_t all = tile.keys * tile.queries;
  if (open == all) return FlashBias::kOpen;
  return blocked == all ? FlashBias::kBlocked : FlashBias::kPartial;
}

// Accounted scratch memory that several threads see.
class Workspace {
 public:
  explicit Workspace(std::int64_t floats)
      : bytes_(static_cast<std::size_t>(floats) * sizeof(float)),
        data_(static_cast<float*>(allocate_bytes(bytes_, MemoryKind::kWorkspace))) {}
  ~Workspace() { free_bytes(data_, bytes_, MemoryKind::kWorkspace); }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  float* data() const { return data_; }

 private:
  std::size_t bytes_;
  float* data_;
};

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
         kBackwardKeys * (4 * h.tile + 2 * head_width + 2 * value_width);
}

// ---- Work -----------------------------------------------------------------------------------

// Sequences [b, b_end) with heads [head, head_end) each; forward: queries [begin, end) of them.
struct Item {
  std::int64_t b, b_end, head, head_end, begin, end;
};
constexpr std::int64_t kAll = std::int64_t{1} << 60;

// Short sequences with all their heads share items; the heads of longer ones have their own, cut
// into up to `pieces(tiles)` runs of tiles. The cut has no influence on any bit.
template <class Pieces>
std::vector<Item> plan(const Problem& p, std::int64_t heads, std::int64_t lanes, Pieces pieces) {
  std::vector<Item> items, shared;
  std::int64_t shared_work = 0;
  for (std::int64_t b = 0; b < p.batch; ++b) {
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

// Runs body(head) with what both directions share.
template <class Body>
void with_head(const FlashTable& table, const Problem& p, std::int64_t b, std::int64_t h,
               std::int64_t (*scratch)(const FlashHead&, std::int64_t), const Body& body) {
  FlashHead head = make_head(p, b, h, table.lanes);
  const BiasContext context{&p.mask, b, h};
  if (p.mask.array_count > 0) head.fill_bias = fill_bias;
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
                   std::int64_t part, float* partial) {
  for (std::int64_t g = 0; g < p.group(); ++g)
    with_head(table, p, b, kv * p.group() + g, backward_scratch, [&](FlashHead& head) {
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
                          std::int64_t kv) {
  const std::int64_t n = p.queries.length(b), d = p.head_size;
  const std::int64_t parts = key_parts(p.visible_keys(b)).count, share = p.group() * n * d;
  const Workspace partial(parts * share);
  parallel_for(parts, [&](std::int64_t part) {
    backward_part(table, p, b, kv, part, partial.data() + part * share);
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

}  // namespace

void flash_forward(const FlashTable& table, const AttentionProblem<float>& p) {
  // A head is cut only when there are too few to keep every thread busy.
  const std::int64_t wanted = 4 * num_threads(), heads = p.batch * p.heads;
  const auto pieces = [&](std::int64_t) {
    return (wanted + heads - 1) / std::max<std::int64_t>(heads, 1);
  };
  const std::vector<Item> items = plan(p, p.heads, table.lanes, pieces);
  parallel_for(static_cast<std::int64_t>(items.size()), [&](std::int64_t index) {
    const Item& item = items[static_cast<std::size_t>(index)];
    for (std::int64_t b = item.b; b < item.b_end; ++b)
      for (std::int64_t h = item.head; h < item.head_end; ++h)
        with_head(table, p, b, h, forward_scratch, [&](const FlashHead& head) {
          table.forward(head, item.begin, std::min(head.queries, item.end));
        });
  });
}

void flash_backward(const FlashTable& table, const AttentionProblem<float>& p) {
  const std::vector<Item> items =
      plan(p, p.kv_heads, table.lanes, [](std::int64_t) { return std::int64_t{1}; });
  const auto size = static_cast<std::int64_t>(items.size());
  const auto parts_of = [&](std::int64_t b) { return key_parts(p.visible_keys(b)).count; };
  const bool few = size < 4 * num_threads();
  if (few)
    for (const Item& item : items)
      if (parts_of(item.b) > 1) backward_in_parallel(table, p, item.b, item.head);
  parallel_for(size, [&](std::int64_t index) {
    const Item& item = items[static_cast<std::size_t>(index)];
    if (few && parts_of(item.b) > 1) return;
    for (std::int64_t b = item.b; b < item.b_end; ++b)
      for (std::int64_t kv = item.head; kv < item.head_end; ++kv)
        for (std::int64_t part = 0; part < parts_of(b); ++part)
          backward_part(table, p, b, kv, part, nullptr);
  });
}

}  // namespace qkv::inline v0::kernels
