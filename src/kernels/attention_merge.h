// Partial results of attention put together row by row.
#pragma once

#include "kernels/attention.h"

namespace qkv::inline v0::kernels {

// Row r of [rows, depth] values; its lse is at lse_index(r).
template <class T>
struct MergeProblem {
  using Statistic = typename AttentionStatistic<T>::Type;
  std::int64_t outer = 0, tokens = 0, heads = 0, depth = 0;  // rows: outer * tokens * heads
  bool heads_first =
      false;  // values [outer, heads, tokens, depth], else [outer, tokens, heads, ..]
  const T *a = nullptr, *b = nullptr, *merged = nullptr, *dout = nullptr;
  const Statistic *a_lse = nullptr, *b_lse = nullptr, *merged_lse = nullptr;
  const Statistic* dlse = nullptr;  // null: none
  T *out = nullptr, *da = nullptr, *db = nullptr;
  Statistic *lse = nullptr, *da_lse = nullptr, *db_lse = nullptr;

  std::int64_t rows() const { return outer * tokens * heads; }
  // lse lies [outer, heads, tokens].
  std::int64_t lse_index(std::int64_t row) const {
    if (heads_first) return row;
    const std::int64_t h = row % heads, t = row / heads % tokens, o = row / heads / tokens;
    return (o * heads + h) * tokens + t;
  }
};

// Writes out and lse.
template <class T>
void merge_attention(const MergeProblem<T>& problem);
// Writes da, db, da_lse, db_lse.
template <class T>
void merge_attention_backward(const MergeProblem<T>& problem);

}  // namespace qkv::inline v0::kernels
