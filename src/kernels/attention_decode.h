// Few queries against many keys: which sequences, and how their work is cut.
#pragma once

#include <string>

#include "kernels/attention.h"
#include "kernels/attention_flash.h"

namespace qkv::inline v0::kernels {

// Whether sequence b is decoded: by its own lengths and the problem's options alone, so that its
// bits do not depend on the others.
template <class T>
bool is_decoded(const AttentionProblem<T>& problem, std::int64_t b);

// Why a problem is not decoded as a whole; empty if it is.
template <class T>
std::string decode_refusal(const AttentionProblem<T>& problem);

// Forward of the sequences that are decoded. A sequence's keys are cut into parts by its length
// alone; the partial results are put together in order. T: float, BFloat16 or Float16; each part is
// widened when its turn comes.
template <class T>
void decode_forward(const FlashTable& table, const AttentionProblem<T>& problem);

}  // namespace qkv::inline v0::kernels
