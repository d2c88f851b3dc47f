// The implementations of attention in order of preference; the last one takes everything.
#pragma once

#include <span>
#include <string>

#include "kernels/attention.h"

namespace qkv::inline v0::kernels {

template <class T>
struct AttentionImplementation {
  const char* name;  // "flash-avx512", "naive"
  // Why it does not take the problem; empty: it takes it.
  std::string (*refusal)(const AttentionProblem<T>& problem);
  void (*forward)(const AttentionProblem<T>& problem);
  void (*backward)(const AttentionProblem<T>& problem);

  bool is_naive() const;
};

template <class T>
std::span<const AttentionImplementation<T>> attention_implementations();

}  // namespace qkv::inline v0::kernels
