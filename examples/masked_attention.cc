// Masked multi-head attention, step by step, with the shape of everything on the way.
//
// Two sentences of 5 and 3 words lie packed in one array of 8 rows: no padding. Each step is a
// plain loop that can be read beside its formula. At the end the library does all of it in one
// call, and both must agree.
//
// Letters as in docs/shapes.md: T packed tokens, C model width, H heads, D head size, N length of
// one sentence.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

#include <qkv/attention.h>
#include <qkv/layout.h>
#include <qkv/mask.h>
#include <qkv/tensor.h>

namespace {

constexpr std::int64_t kWidth = 16, kHeads = 4, kHeadSize = kWidth / kHeads;

void show(const char* step, const qkv::Tensor& x, const char* meaning) {
  std::printf("  %-28s %-14s %s\n", step, x.shape().str().c_str(), meaning);
}

// Values that look random and are the same on every run.
qkv::Tensor made_up(const qkv::Shape& shape, double scale, double phase) {
  qkv::Tensor x = qkv::Tensor::empty(shape, qkv::DType::kFloat64);
  for (std::int64_t i = 0; i < x.numel(); ++i)
    x.data<double>()[i] = scale * std::sin(1.7 * static_cast<double>(i) + phase);
  return x;
}

// y = x w^T. x: [T, K], w: [N, K] -> [T, N]
qkv::Tensor multiply(const qkv::Tensor& x, const qkv::Tensor& w) {
  const std::int64_t t = x.dim(0), k = x.dim(1), n = w.dim(0);
  qkv::Tensor y = qkv::Tensor::zeros({t, n}, qkv::DType::kFloat64);
  for (std::int64_t i = 0; i < t; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      for (std::int64_t l = 0; l < k; ++l)
        y.data<double>()[i * n + j] += x.data<double>()[i * k + l] * w.data<double>()[j * k + l];
    }
  }
  return y;
}

double at(const qkv::Tensor& x, std::int64_t token, std::int64_t head, std::int64_t channel) {
  return x.data<double>()[token * x.stride(0) + head * x.stride(1) + channel];
}

// One head of one sentence. q, k, v: [N, H, D]. Weights: [N, N]; a word sees itself and the words
// before it.
qkv::Tensor weights_of(const qkv::Tensor& q, const qkv::Tensor& k, std::int64_t head) {
  const std::int64_t n = q.dim(0);
  qkv::Tensor p = qkv::Tensor::zeros({n, n}, qkv::DType::kFloat64);
  for (std::int64_t i = 0; i < n; ++i) {
    // Scores of the visible keys only: what is masked is never computed, rather than set to a large
    // negative number.
    std::vector<double> scores;
    for (std::int64_t j = 0; j <= i; ++j) {
      double dot = 0;
      for (std::int64_t d = 0; d < kHeadSize; ++d) dot += at(q, i, head, d) * at(k, j, head, d);
      scores.push_back(dot / std::sqrt(static_cast<double>(kHeadSize)));
    }
    const double largest = *std::max_element(scores.begin(), scores.end());
    double sum = 0;
    for (double& score : scores) sum += score = std::exp(score - largest);
    for (std::int64_t j = 0; j <= i; ++j)
      p.data<double>()[i * n + j] = scores[static_cast<std::size_t>(j)] / sum;
  }
  return p;
}

}  // namespace

int main() {
  const std::vector<std::int64_t> lengths = {5, 3};
  const qkv::RaggedLayout layout = qkv::RaggedLayout::from_lengths(lengths);
  const std::int64_t t = layout.tokens();
  std::printf("masked multi-head attention, two sentences of 5 and 3 words\n");

  const qkv::Tensor x = made_up({t, kWidth}, 1.0, 0.3);
  show("x", x, "[T, C] both sentences, packed");
  const qkv::Tensor w_qkv = made_up({3 * kWidth, kWidth}, 0.15, 1.1);
  show("w_qkv", w_qkv, "[3C, C] one matrix for queries, keys and values");

  const qkv::Tensor projected = multiply(x, w_qkv);
  show("x w_qkv^T", projected, "[T, 3C] one product");
  const qkv::Tensor heads = projected.reshape({t, 3 * kHeads, kHeadSize});
  show("as heads", heads, "[T, 3H, D] the same memory, seen differently");
  const qkv::Tensor q = heads.narrow(1, 0, kHeads), k = heads.narrow(1, kHeads, kHeads),
                    v = heads.narrow(1, 2 * kHeads, kHeads);
  show("q, k, v", q, "[T, H, D] views, nothing is copied");

  const qkv::Tensor mixed = qkv::Tensor::zeros({t, kHeads, kHeadSize}, qkv::DType::kFloat64);
  for (std::int64_t b = 0; b < layout.batch(); ++b) {
    const std::int64_t start = layout.starts[static_cast<std::size_t>(b)], n = layout.length(b);
    const qkv::Tensor qb = q.narrow(0, start, n), kb = k.narrow(0, start, n),
                      vb = v.narrow(0, start, n);
    for (std::int64_t head = 0; head < kHeads; ++head) {
      const qkv::Tensor p = weights_of(qb, kb, head);
      if (head == 0)
        show(b == 0 ? "weights, sentence 1" : "weights, sentence 2", p, "[N, N] for each head");
      for (std::int64_t i = 0; i < n; ++i) {
        for (std::int64_t d = 0; d < kHeadSize; ++d) {
          double sum = 0;
          for (std::int64_t j = 0; j <= i; ++j)
            sum += p.data<double>()[i * n + j] * at(vb, j, head, d);
          mixed.data<double>()[((start + i) * kHeads + head) * kHeadSize + d] = sum;
        }
      }
    }
    if (b == 0) {
      const qkv::Tensor p = weights_of(qb, kb, 0);
      std::printf(
          "\n  what head 0 of sentence 1 looks at (rows: words; a word sees no later one)\n");
      for (std::int64_t i = 0; i < n; ++i) {
        std::printf("   ");
        for (std::int64_t j = 0; j < n; ++j) std::printf(" %.3f", p.data<double>()[i * n + j]);
        std::printf("\n");
      }
      std::printf("\n");
    }
  }
  show("weights v", mixed, "[T, H, D] every head's mixture");
  const qkv::Tensor joined = mixed.reshape({t, kWidth});
  show("heads joined", joined, "[T, C] the same memory again");
  show("joined w_out^T", multiply(joined, made_up({kWidth, kWidth}, 0.4, 2.2)),
       "[T, C] what the layer gives");

  // The same in one call: same views, a typed mask, no score matrix in memory.
  qkv::ops::AttentionInput input;
  input.q = q;
  input.k = k;
  input.v = v;
  input.queries = input.keys = &layout;
  qkv::ops::AttentionOptions options;
  options.mask = qkv::Mask::causal();
  const qkv::Tensor out = qkv::ops::attention(input, options).out;
  double worst = 0;
  for (std::int64_t i = 0; i < out.numel(); ++i)
    worst = std::max(worst, std::abs(out.data<double>()[i] - mixed.data<double>()[i]));
  std::printf("\nlargest difference to qkv::ops::attention: %.2e\n", worst);
  return worst < 1e-12 ? 0 : 1;
}
