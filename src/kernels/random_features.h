// Positive random features: the projection, and rows of features on one scale.
#pragma once

#include <cstdint>
#include <vector>

namespace qkv::inline v0::kernels {

// [count, depth]: rows whose directions are orthogonal within every `depth` of them, and whose
// lengths are those of normal vectors. A pure function of the arguments; in double.
std::vector<double> orthogonal_features(std::int64_t count, std::int64_t depth, std::uint64_t seed);

// Log of sum_r exp(logits[r]) - |x|^2 / 2 of a row whose softmax over r is `weights`.
template <class T>
double feature_level(const T* logits, const T* weights, std::int64_t count, const T* x,
                     std::int64_t depth, double scale);

// Weights of `tokens` keys to features on one scale: row t is multiplied with e^(level_t - C_t), C
// the largest level of all tokens, or (causal) of those up to t; then decay[t] = e^(C_(t-1) - C_t),
// 1 for the first. rows: of the first token, `stride` apart. No factor exceeds 1.
template <class T>
void level_features(const double* levels, std::int64_t tokens, bool causal, T* rows,
                    std::int64_t stride, std::int64_t count, T* decay);

}  // namespace qkv::inline v0::kernels
