// Attention over bf16 and fp16 storage: every key/value head with its queries is widened to fp32 in
// scratch memory, runs as a problem of its own, and its results are narrowed. Scores, softmax and
// sums are those of fp32. Decoding widens part by part: see attention_decode.cc.
#include <algorithm>
#include <type_traits>
#include <vector>

#include "qkv/threads.h"

#include "base/thread_pool.h"
#include "kernels/attention_bias.h"
#include "kernels/attention_decode.h"
#include "kernels/attention_flash.h"
#include "kernels/attention_pairs.h"
#include "kernels/attention_workspace.h"
#include "kernels/narrow_rows.h"

namespace qkv::inline v0::kernels {

namespace {

// Key/value head kv of sequence b as a padded problem of one sequence with fp32 in memory of its
// own: all operands, or only gradients where the kernels read bf16 (`kept`).
template <class T>
class WideHead {
 public:
  WideHead(const FlashTable& table, const AttentionProblem<T>& from, std::int64_t b,
           std::int64_t kv, bool backward, bool kept = false)
      : table_(table),
        from_(from),
        b_(b),
        kv_(kv),
        n_(from.queries.length(b)),
        s_(from.keys.length(b)),
        memory_(floats(from, n_, s_, backward, kept)) {
    float* at = memory_.data();
    const std::int64_t d = from.head_size, dv = from.value_size, group = from.group();
    const auto operand = [&](std::int64_t heads, std::int64_t tokens, std::int64_t depth) {
      AttentionOperand<float> made{at, depth, tokens * depth, 0};
      at += heads * tokens * depth;
      return made;
    };
    const auto input = [&](const AttentionOperand<const T>& source, bool is_query,
                           std::int64_t depth) {
      const AttentionOperand<float> made = operand(is_query ? group : 1, is_query ? n_ : s_, depth);
      widen(source, is_query, depth, made);
      return AttentionOperand<const float>{made.data, made.token_stride, made.head_stride, 0};
    };
    set_options();
    problem.lse = at;
    at += group * n_;
    if (kept) {
      keep_operands();
    } else {
      problem.q = input(from.q, true, d);
      problem.k = input(from.k, false, d);
      problem.v = input(from.v, false, dv);
      problem.out = operand(group, n_, dv);
      if (!backward) return;
      widen({from.out.data, from.out.token_stride, from.out.head_stride, from.out.sequence_stride},
            true, dv, problem.out);
      problem.dout = input(from.dout, true, dv);
    }
    problem.dq = operand(group, n_, d);
    problem.dk = operand(1, s_, d);
    problem.dv = operand(1, s_, dv);
    for (std::int64_t g = 0; g < group; ++g)
      std::copy_n(from.lse_at(b, kv * group + g), n_, problem.lse + g * n_);
    if (from.dlse == nullptr) return;
    problem.dlse = at;
    for (std::int64_t g = 0; g < group; ++g)
      std::copy_n(from.dlse_at(b, kv * group + g), n_, at + g * n_);
  }

  void store_forward() const {
    narrow(problem.out, true, from_.value_size, from_.out);
    for (std::int64_t g = 0; g < from_.group(); ++g)
      std::copy_n(problem.lse + g * n_, n_, from_.lse_at(b_, kv_ * from_.group() + g));
  }
  void store_backward() const {
    narrow(problem.dq, true, from_.head_size, from_.dq);
    narrow(problem.dk, false, from_.head_size, from_.dk);
    narrow(problem.dv, false, from_.value_size, from_.dv);
  }

  AttentionProblem<float> problem;

 private:
  static std::int64_t floats(const AttentionProblem<T>& p, std::int64_t n, std::int64_t s,
                             bool backward, bool kept) {
    if (kept) return p.group() * n * (p.head_size + 2) + s * (p.head_size + p.value_size);
    const std::int64_t inputs =
        p.group() * n * (p.head_size + p.value_size + 1) + s * (p.head_size + p.value_size);
    return backward ? 2 * inputs + p.group() * n * p.value_size : inputs;
  }

  void keep_operands() {
    if constexpr (std::is_same_v<T, BFloat16>) {
      const auto at = [&]<class U>(const AttentionOperand<U>& x, bool is_query) {
        const AttentionSequences& sequences = is_query ? from_.queries : from_.keys;
        return AttentionOperand<U>{x.at(sequences, b_, first_head(is_query)), x.token_stride,
                                   x.head_stride, 0};
      };
      narrow_ = {at(from_.q, true), at(from_.k, false), at(from_.v, false), at(from_.dout, true),
                 at(from_.out, true)};
      problem.narrow = &narrow_;
    }
  }

  // Everything but operands: the masks begin at this sequence and its first head.
  void set_options() {
    const std::int64_t head = kv_ * from_.group();
    problem.queries = {nullptr, n_};
    problem.keys = {nullptr, s_};
    problem.batch = problem.kv_heads = 1;
    problem.heads = from_.group();
    problem.head_size = from_.head_size;
    problem.value_size = from_.value_size;
    problem.scale = from_.scale;
    problem.softcap = from_.softcap;
    problem.mask = from_.mask;
    if (from_.mask.lengths) problem.mask.lengths += b_;
    if (from_.mask.slopes) problem.mask.slopes += head;
    for (int a = 0; a < from_.mask.array_count; ++a) {
      AttentionMaskArray array = from_.mask.arrays[a];
      array.data =
          static_cast<const char*>(array.data) + array.offset(b_, head, 0, 0) * array.element_bytes;
      arrays_.push_back(array);
    }
    problem.mask.arrays = arrays_.data();
    problem.dropout = from_.dropout;
    problem.dropout.first_head += head;
    sample_ = from_.dropout.samples ? from_.dropout.samples[b_] : b_;
    problem.dropout.samples = &sample_;
  }

  void widen(const AttentionOperand<const T>& source, bool is_query, std::int64_t depth,
             const AttentionOperand<float>& to) const {
    const AttentionSequences& sequences = is_query ? from_.queries : from_.keys;
    for (std::int64_t h = 0; h < heads(is_query); ++h)
      table_.widen(
          narrow_rows(source.at(sequences, b_, first_head(is_query) + h), source.token_stride),
          tokens(is_query), depth, to.data + h * to.head_stride);
  }
  void narrow(const AttentionOperand<float>& source, bool is_query, std::int64_t depth,
              const AttentionOperand<T>& to) const {
    const AttentionSequences& sequences = is_query ? from_.queries : from_.keys;
    for (std::int64_t h = 0; h < heads(is_query); ++h)
      table_.narrow(source.data + h * source.head_stride, tokens(is_query), depth,
                    narrow_output(to.at(sequences, b_, first_head(is_query) + h), to.token_stride));
  }
  std::int64_t heads(bool is_query) const { return is_query ? from_.group() : 1; }
  std::int64_t first_head(bool is_query) const { return is_query ? kv_ * from_.group() : kv_; }
  std::int64_t tokens(bool is_query) const { return is_query ? n_ : s_; }

  const FlashTable& table_;
  const AttentionProblem<T>& from_;
  std::int64_t b_, kv_, n_, s_, sample_ = 0;
  std::vector<AttentionMaskArray> arrays_;
  NarrowOperands narrow_;
  Workspace<float> memory_;
};

// body(b, kv) for every key/value head: side by side where there are enough, else in order, and
// their own work runs on the pool.
template <class Body>
void for_heads(std::int64_t batch, std::int64_t kv_heads, const Body& body) {
  const std::int64_t items = batch * kv_heads;
  const auto run = [&](std::int64_t item) { body(item / kv_heads, item % kv_heads); };
  if (items >= 2 * num_threads()) return parallel_for(items, run);
  for (std::int64_t item = 0; item < items; ++item) run(item);
}

template <class T>
void forward_narrow(const FlashTable& table, const AttentionProblem<T>& p) {
  decode_forward(table, p);
  for_heads(p.batch, p.kv_heads, [&](std::int64_t b, std::int64_t kv) {
    if (is_decoded(p, b)) return;
    const WideHead<T> head(table, p, b, kv, false);
    flash_forward(table, head.problem);
    head.store_forward();
  });
}

// pairs: kernels that read bf16, for what is not decoded; null: none.
template <class T>
void backward_narrow(const FlashTable& table, const FlashTable* pairs,
                     const AttentionProblem<T>& p) {
  const auto run = [&](std::int64_t b, std::int64_t kv, const AttentionBiasGradient* dbias) {
    const bool kept = pairs != nullptr && !is_decoded(p, b);
    WideHead<T> head(table, p, b, kv, true, kept);
    const FlashTable& kernels = kept ? *pairs : table;
    if (dbias) {
      head.problem.dbias = *dbias;
      flash_add_backward(kernels, head.problem);
    } else {
      flash_backward(kernels, head.problem);
    }
    head.store_backward();
  };
  if (p.dbias.data == nullptr)
    return for_heads(p.batch, p.kv_heads,
                     [&](std::int64_t b, std::int64_t kv) { run(b, kv, nullptr); });
  sum_bias_gradient(p.dbias, p.batch, p.kv_heads,
                    [&](std::int64_t b, std::int64_t kv, const AttentionBiasGradient& sum, bool) {
                      AttentionBiasGradient here = sum;
                      const std::int64_t at = b * sum.strides[0] + kv * p.group() * sum.strides[1];
                      here.data = static_cast<char*>(sum.data) +
                                  at * static_cast<std::int64_t>(sum.is_double ? 8 : 4);
                      run(b, kv, &here);
                    });
}

}  // namespace

void pairs_backward(const FlashTable& pairs, const FlashTable& wide,
                    const AttentionProblem<BFloat16>& problem) {
  backward_narrow(wide, &pairs, problem);
}

template <>
void flash_forward(const FlashTable& table, const AttentionProblem<BFloat16>& problem) {
  forward_narrow(table, problem);
}
template <>
void flash_forward(const FlashTable& table, const AttentionProblem<Float16>& problem) {
  forward_narrow(table, problem);
}
template <>
void flash_backward(const FlashTable& table, const AttentionProblem<BFloat16>& problem) {
  backward_narrow(table, nullptr, problem);
}
template <>
void flash_backward(const FlashTable& table, const AttentionProblem<Float16>& problem) {
  backward_narrow(table, nullptr, problem);
}

}  // namespace qkv::inline v0::kernels
