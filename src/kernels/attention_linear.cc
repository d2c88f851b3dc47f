#include "kernels/attention_linear.h"

#include <algorithm>
#include <cstring>

#include "base/memory.h"
#include "base/thread_pool.h"
#include "kernels/attention.h"
#include "kernels/reference/attention_linear.h"
#include "kernels/registry.h"
#include "kernels/simd_tables.h"

namespace qkv::inline v0::kernels {

QKV_SIMD_TABLE(LinearTable, kLinearTable)

namespace {

using Problem = LinearAttentionProblem<float>;
constexpr int kScratchSlot = 5;
constexpr Implementation<LinearTable> kTables[] = {QKV_SIMD_LIST(kLinearTable)};

// Null: the reference is asked for.
const LinearTable* chosen() {
  const char* forced = forced_implementation();
  if (forced != nullptr && std::strcmp(forced, kReference) == 0) return nullptr;
  return &pick<LinearTable>(kTables);
}

std::int64_t round_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }

// Two states of [D][Dv] and [Dv][D] with a vector [D], and six rows; backward two numbers a token.
std::int64_t scratch_floats(const LinearHead& h, std::int64_t lanes) {
  const std::int64_t d = round_up(h.head_size, lanes), dv = round_up(h.value_size, lanes);
  return 2 * d * dv + d + 3 * (d + dv) + 2 * round_up(h.tokens, lanes);
}

FlashRows rows(const Problem& p, const AttentionOperand<const float>& operand, std::int64_t b,
               std::int64_t h) {
  if (operand.data == nullptr) return {nullptr, 0};
  return {operand.at(p.sequences, b, h), operand.token_stride};
}
FlashOutput rows(const Problem& p, const AttentionOperand<float>& operand, std::int64_t b,
                 std::int64_t h) {
  if (operand.data == nullptr) return {nullptr, 0};
  return {operand.at(p.sequences, b, h), operand.token_stride};
}

LinearHead make_head(const Problem& p, std::int64_t b, std::int64_t h, std::int64_t lanes) {
  const std::int64_t group = p.heads / p.kv_heads, kv = h / group;
  LinearHead head{};
  head.q = rows(p, p.q, b, h);
  head.k = rows(p, p.k, b, kv);
  head.v = rows(p, p.v, b, kv);
  head.dout = rows(p, p.dout, b, h);
  head.out = rows(p, p.out, b, h);
  head.dq = rows(p, p.dq, b, h);
  head.dk = rows(p, p.dk, b, kv);
  head.dv = rows(p, p.dv, b, kv);
  head.tokens = p.sequences.length(b);
  head.head_size = p.head_size;
  head.value_size = p.value_size;
  head.causal = p.causal;
  head.features = p.features;
  head.least = static_cast<float>(p.least);
  head.decay = p.decay_at(b, kv);
  head.add_to_kv = h % group != 0;
  head.scratch =
      thread_scratch_of<float>(static_cast<std::size_t>(scratch_floats(head, lanes)), kScratchSlot);
  return head;
}

// A key/value head of a sequence is a work item, with its query heads in order.
void run(const LinearTable& table, const Problem& p, void (*kernel)(const LinearHead&)) {
  parallel_for(p.batch * p.kv_heads, [&](std::int64_t item) {
    const std::int64_t b = item / p.kv_heads, group = p.heads / p.kv_heads;
    for (std::int64_t g = 0; g < group; ++g)
      kernel(make_head(p, b, item % p.kv_heads * group + g, table.lanes));
  });
}

}  // namespace

template <>
void linear_attention(const LinearAttentionProblem<float>& problem) {
  if (const LinearTable* table = chosen()) return run(*table, problem, table->forward);
  linear_attention_reference(problem);
}

template <>
void linear_attention_backward(const LinearAttentionProblem<float>& problem) {
  if (const LinearTable* table = chosen()) return run(*table, problem, table->backward);
  linear_attention_backward_reference(problem);
}

template <>
void linear_attention(const LinearAttentionProblem<double>& problem) {
  linear_attention_reference(problem);
}

template <>
void linear_attention_backward(const LinearAttentionProblem<double>& problem) {
  linear_attention_backward_reference(problem);
}

}  // namespace qkv::inline v0::kernels
