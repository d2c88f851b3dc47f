// The attention problem as the kernels see it: pointers, strides, lengths. Letters: docs/shapes.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "qkv/dtype.h"

#include "base/random.h"

namespace qkv::inline v0::kernels {

// The sequences of a batch. Ragged: sequence b is tokens starts[b] .. starts[b + 1] of one packed
// axis. Padded (starts null): every sequence has `padded` tokens.
struct AttentionSequences {
  const std::int32_t* starts = nullptr;
  std::int64_t padded = 0;

  std::int64_t length(std::int64_t b) const {
    return starts ? std::int64_t{starts[b + 1]} - starts[b] : padded;
  }
};

// Element (sequence b, token t, head h, channel d) of an operand. Channels are contiguous.
template <class T>
struct AttentionOperand {
  T* data = nullptr;
  std::int64_t token_stride = 0, head_stride = 0;
  std::int64_t sequence_stride = 0;  // padded only

  T* at(const AttentionSequences& sequences, std::int64_t b, std::int64_t h) const {
    const std::int64_t begin =
        sequences.starts ? sequences.starts[b] * token_stride : b * sequence_stride;
    return data + begin + h * head_stride;
  }
};

// One array of a mask, indexed (b, h, query, key) with stride 0 along broadcast extents.
struct AttentionMaskArray {
  enum class Kind : std::uint8_t { kKeep, kBlock, kAdditive };
  const void* data = nullptr;
  Kind kind = Kind::kKeep;
  std::uint8_t element_bytes = 1;  // of the integer (kKeep, kBlock) or floating (kAdditive) element
  std::int64_t strides[4] = {0, 0, 0, 0};  // in elements

  std::int64_t offset(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
    return b * strides[0] + h * strides[1] + i * strides[2] + j * strides[3];
  }
  bool is_nonzero(std::int64_t at) const {
    switch (element_bytes) {
      case 1:
        return static_cast<const std::uint8_t*>(data)[at] != 0;
      case 2:
        return static_cast<const std::int16_t*>(data)[at] != 0;
      case 4:
        return static_cast<const std::int32_t*>(data)[at] != 0;
      default:
        return static_cast<const std::int64_t*>(data)[at] != 0;
    }
  }
  double value(std::int64_t at) const {
    return element_bytes == 4 ? double{static_cast<const float*>(data)[at]}
                              : static_cast<const double*>(data)[at];
  }
};

// A band -left <= key - position <= right (-1: unlimited) that some positions are exempt from: as
// keys they are visible to all, as queries they see all.
struct AttentionWindow {
  std::int64_t left = -1, right = -1;
  const std::int64_t* globals = nullptr;  // ascending
  std::int64_t global_count = 0;

  // Whether one of the positions [begin, end) is global.
  bool any_global(std::int64_t begin, std::int64_t end) const {
    std::int64_t low = 0, high = global_count;
    while (low < high) {
      const std::int64_t middle = (low + high) / 2;
      if (globals[middle] < begin)
        low = middle + 1;
      else
        high = middle;
    }
    return low < global_count && globals[low] < end;
  }
  bool in_band(std::int64_t position, std::int64_t key) const {
    return (left < 0 || key >= position - left) && (right < 0 || key <= position + right);
  }
  bool sees(std::int64_t position, std::int64_t key) const {
    return in_band(position, key) || any_global(key, key + 1) || any_global(position, position + 1);
  }
};

// Key j is visible to query i of a sequence, whose position is i + S - N, when -left <= j -
// position <= right (-1: unlimited), j < lengths[b], every window lets it and no array blocks it.
struct AttentionMask {
  std::int64_t left = -1, right = -1;
  const std::int64_t* lengths = nullptr;
  const double* slopes = nullptr;  // ALiBi: -slopes[h] |position - j| is added; null: none
  const AttentionWindow* windows = nullptr;
  int window_count = 0;
  const AttentionMaskArray* arrays = nullptr;
  int array_count = 0;

  // Whether more than left, right and lengths decides what is visible or added.
  bool has_bias() const { return window_count > 0 || array_count > 0; }
  // What is added to the score of (b, h, i, j), with the position of i: -inf where blocked.
  double bias(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j,
              std::int64_t position) const {
    constexpr double kBlocked = -std::numeric_limits<double>::infinity();
    for (int w = 0; w < window_count; ++w)
      if (!windows[w].sees(position, j)) return kBlocked;
    for (int a = 0; a < array_count; ++a) {
      const AttentionMaskArray& array = arrays[a];
      if (array.kind == AttentionMaskArray::Kind::kAdditive) continue;
      const bool nonzero = array.is_nonzero(array.offset(b, h, i, j));
      if (nonzero != (array.kind == AttentionMaskArray::Kind::kKeep)) return kBlocked;
    }
    double sum = 0;
    for (int a = 0; a < array_count; ++a) {
      const AttentionMaskArray& array = arrays[a];
      if (array.kind != AttentionMaskArray::Kind::kAdditive) continue;
      const double value = array.value(array.offset(b, h, i, j));
      if (value == kBlocked) return kBlocked;
      sum += value;
    }
    if (slopes) sum -= slopes[h] * static_cast<double>(position > j ? position - j : j - position);
    return sum;
  }
};

// Dropout on the weights after softmax: a pure function of (key, step, sample, head, query, key).
struct AttentionDropout {
  std::uint64_t threshold = 0;  // p * 2^32: a number below it drops the weight; 0: no dropout
  double keep_scale = 1;        // 1 / (1 - p); 0 for p = 1
  std::int64_t first_head = 0;  // number of the problem's head 0
  std::uint64_t key = 0;
  std::uint32_t step = 0;
  const std::int64_t* samples = nullptr;  // of each sequence; null: its index

  bool active() const { return threshold != 0; }
  std::uint32_t sample(std::int64_t b) const {
    return static_cast<std::uint32_t>(samples ? samples[b] : b);
  }
  // Queries from 65536 on change the key, as the counter has 16 bits for the query.
  std::uint64_t query_key(std::int64_t i) const {
    return key + static_cast<std::uint64_t>(i >> 16) * 0x9E3779B97F4A7C15u;
  }
  std::uint32_t token(std::int64_t h, std::int64_t i) const {
    return static_cast<std::uint32_t>(first_head + h) << 16 |
           static_cast<std::uint32_t>(i & 0xFFFF);
  }
  // The numbers of keys 4 * block .. 4 * block + 3.
  PhiloxBlock numbers(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t block) const {
    return philox(query_key(i), {static_cast<std::uint32_t>(block), token(h, i), sample(b), step});
  }
  bool drops(std::uint32_t number) const { return number < threshold; }
};

// Where the gradient of an additive bias goes, indexed like a mask array. Null: not wanted.
struct AttentionBiasGradient {
  void* data = nullptr;
  bool is_double = false;                  // else float
  std::int64_t sizes[4] = {0, 0, 0, 0};    // 1 along broadcast extents
  std::int64_t strides[4] = {0, 0, 0, 0};  // 0 there
};

// Type of lse and weights: bf16 and fp16 are for storage only.
template <class T>
struct AttentionStatistic {
  using Type = std::conditional_t<std::is_same_v<T, double>, double, float>;
};

// bf16 operands in the place of q, k, v, out and dout, for kernels that take products of them;
// gradients are fp32.
struct NarrowOperands {
  AttentionOperand<const BFloat16> q, k, v, dout;
  AttentionOperand<BFloat16> out;
};

// Forward: q, k, v to out, lse (weights). Backward: q, k, v, out, lse, dout (dlse) to dq, dk, dv
// (dbias).
template <class T>
struct AttentionProblem {
  using Statistic = typename AttentionStatistic<T>::Type;
  AttentionSequences queries, keys;
  std::int64_t batch = 0, heads = 0, kv_heads = 0;
  std::int64_t head_size = 0, value_size = 0;  // D and Dv
  double scale = 1;
  double softcap = 0;  // scores become softcap tanh(score / softcap); 0: they stay
  AttentionMask mask;
  AttentionDropout dropout;
  AttentionOperand<const T> q, k, v, dout;
  AttentionOperand<T> out, dq, dk, dv;
  const NarrowOperands* narrow = nullptr;
  AttentionBiasGradient dbias;
  Statistic* lse = nullptr;                      // [H, T] or [B, H, N]
  const Statistic* dlse = nullptr;               // likewise, backward; null: none
  Statistic* weights = nullptr;                  // blocks [H, N_b, S_b]; null: not wanted
  const std::int64_t* weight_offsets = nullptr;  // first element of each sequence's block

  std::int64_t group() const { return heads / kv_heads; }
  std::int64_t lse_offset(std::int64_t b, std::int64_t h) const {
    return queries.starts ? h * queries.starts[batch] + queries.starts[b]
                          : (b * heads + h) * queries.padded;
  }
  Statistic* lse_at(std::int64_t b, std::int64_t h) const { return lse + lse_offset(b, h); }
  const Statistic* dlse_at(std::int64_t b, std::int64_t h) const {
    return dlse ? dlse + lse_offset(b, h) : nullptr;
  }
  // Keys of sequence b that `lengths` leaves.
  std::int64_t visible_keys(std::int64_t b) const {
    const std::int64_t s = keys.length(b);
    return mask.lengths && mask.lengths[b] < s ? mask.lengths[b] : s;
  }
  // First visible key of query i by window and causal, before arrays; and one past the last.
  std::int64_t key_begin(std::int64_t b, std::int64_t i) const {
    if (mask.left < 0) return 0;
    const std::int64_t first = i + keys.length(b) - queries.length(b) - mask.left;
    return first > 0 ? first : 0;
  }
  std::int64_t key_end(std::int64_t b, std::int64_t i) const {
    const std::int64_t s = visible_keys(b);
    if (mask.right < 0) return s;
    const std::int64_t end = i + keys.length(b) - queries.length(b) + mask.right + 1;
    return end < s ? (end > 0 ? end : 0) : s;
  }
};

// Linear-time attention: forward takes q, k, v to out, backward q, k, v, dout to dq, dk, dv.
// features: q and k are phi of something already. decay, [Hkv, tokens] or null, causal only: factor
// of the sums over earlier keys before key t is added.
template <class T>
struct LinearAttentionProblem {
  AttentionSequences sequences;
  std::int64_t batch = 0, heads = 0, kv_heads = 0;
  std::int64_t head_size = 0, value_size = 0;
  bool causal = false, features = false;
  double least = 0;  // denominators up to it give zeros
  const T* decay = nullptr;
  AttentionOperand<const T> q, k, v, dout;
  AttentionOperand<T> out, dq, dk, dv;
  const T* decay_at(std::int64_t b, std::int64_t kv) const {
    return decay ? decay + kv * sequences.starts[batch] + sequences.starts[b] : nullptr;
  }
};

}  // namespace qkv::inline v0::kernels
