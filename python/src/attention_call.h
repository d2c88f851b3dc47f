// A call of attention from Python: arrays [..., heads, length, channels] as the engine's operands,
// and the keywords that its functions share.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nanobind/nanobind.h>

#include "qkv/attention.h"

#include "arrays.h"

namespace qkv::python {

using Extents = std::vector<std::int64_t>;

// One operand as [B, H, N, D], B the product of all leading extents.
struct Operand {
  Tensor tensor;
  Extents lead;
};

// `array` as [B, inner...] with `inner` trailing dimensions kept.
Operand fold_leading(Array array, int inner, const char* name);

// ShapeError for fewer than three dimensions. `library` gets who made the array.
Operand import_operand(nanobind::handle object, const char* name, Library* library = nullptr);

// Heads and tokens of [B, H, N, D] lie in memory as [B, N, H, D].
bool is_token_major(const Tensor& t);

// An empty tensor shaped like `of` whose dimensions follow each other in memory as those of `of`
// do.
Tensor empty_like(const Tensor& of);

// q, k, v and how results are to lie in memory and be handed over.
struct Call {
  Operand q, k, v;
  Library library = Library::kNumpy;
  nanobind::handle like;
  bool token_major = false;
  bool no_channels = false;  // v has none: its place is taken by a channel of k

  // [B, H, N, D] as the engine takes it under `token_major`, and back.
  Tensor turned(const Tensor& t) const { return token_major ? t.transpose(1, 2) : t; }
  bool is_empty() const;
  ops::AttentionInput input() const;
};

Call import_call(nanobind::handle q, nanobind::handle k, nanobind::handle v);

// A result [B, ...] as an array [lead..., ...].
nanobind::object export_result(const Call& call, const Tensor& result);
// A result as it is.
nanobind::object export_plain(const Tensor& result, Library library, nanobind::handle like);

// The type of lse, of weights, and of the gradient of a bias.
DType statistic(DType dtype);

// The keywords that forward, backward and the explanation share.
struct Keywords {
  nanobind::object mask, window, seed;
  bool causal = false;
  std::optional<double> scale, softcap;
  std::string backend;
  double dropout_p = 0;

  ops::AttentionOptions options(bool may_draw_seed) const;
};

// Which results are asked for beside the output.
struct Wanted {
  bool lse = false, weights = false;
};
// (out, lse, weights) without those that were not asked for; the output alone if it is all.
nanobind::object pack_results(const Wanted& wanted, const nanobind::object& out,
                              const nanobind::object& lse, const nanobind::object& weights);

// What the forward pass gave, and what its result's gradient is.
struct BackwardArrays {
  nanobind::handle dout, out, lse;
};

// Attention over packed sequences (attention_ragged.cc): q [T, H, D], k and v [S, Hkv, D].
// Boundaries of keys: those of queries where none are given.
struct Boundaries {
  nanobind::object queries, keys;
  bool given() const { return !queries.is_none() || !keys.is_none(); }
};
nanobind::object ragged_forward(nanobind::handle q, nanobind::handle k, nanobind::handle v,
                                const Boundaries& boundaries, const Keywords& keywords,
                                const Wanted& wanted);
nanobind::object ragged_backward(nanobind::handle q, nanobind::handle k, nanobind::handle v,
                                 const Boundaries& boundaries, const BackwardArrays& arrays,
                                 const Keywords& keywords,
                                 const std::optional<Extents>& dbias_shape);
nanobind::list ragged_explain(nanobind::handle q, nanobind::handle k, nanobind::handle v,
                              const Boundaries& boundaries, const Keywords& keywords,
                              const Wanted& wanted);

void bind_ragged(nanobind::module_& m);  // merge_attention

}  // namespace qkv::python
