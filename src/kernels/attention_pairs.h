// Attention whose products take bf16 as it is stored: dot products of pairs in registers
// (AVX512-BF16) or tiles (AMX). Sums, softmax and statistics are those of fp32.
#pragma once

#include <string>

#include "kernels/attention.h"
#include "kernels/attention_flash.h"

namespace qkv::inline v0::kernels {

// `pairs` runs the tiles, `wide` (a table of fp32) what they leave: sequences that are decoded.
void pairs_forward(const FlashTable& pairs, const FlashTable& wide,
                   const AttentionProblem<BFloat16>& problem);
// Gradients are summed in fp32 and rounded once.
void pairs_backward(const FlashTable& pairs, const FlashTable& wide,
                    const AttentionProblem<BFloat16>& problem);

// Why dot products of pairs are not the choice of this processor although it has them; empty if
// they are. A rule of the vendor, so that bits do not change from run to run: with AMD (Zen 4, Zen
// 5) they take as long as fp32 multiply-adds and do twice the work, with Intel twice as long or
// more.
std::string dot_product_refusal();

// What attention over bf16 runs on here, and why: for `qkv info`.
std::string bf16_attention_reason();

// For tests: while it lives, bf16 runs on `pairs` (with `wide` for what it leaves), as if it were
// AMX. Not thread-safe.
class PairTableScope {
 public:
  PairTableScope(const FlashTable& pairs, const FlashTable& wide);
  ~PairTableScope();
  PairTableScope(const PairTableScope&) = delete;
  PairTableScope& operator=(const PairTableScope&) = delete;

  static const PairTableScope* current();
  const FlashTable& pairs() const { return pairs_; }
  const FlashTable& wide() const { return wide_; }

 private:
  const FlashTable &pairs_, &wide_;
  const PairTableScope* previous_;
};

}  // namespace qkv::inline v0::kernels
