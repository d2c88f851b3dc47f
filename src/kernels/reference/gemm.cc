#include "kernels/reference/gemm.h"

#include <vector>

namespace qkv::inline v0::kernels::reference {
namespace {

// A row of C at a time: the inner loop runs along n, so that memory is walked in order when B is
// not transposed.
template <class T>
void product(const Gemm<T>& p) {
  std::vector<double> row(static_cast<std::size_t>(p.n));
  for (std::int64_t i = 0; i < p.m; ++i) {
    for (std::int64_t j = 0; j < p.n; ++j) row[static_cast<std::size_t>(j)] = 0;
    for (std::int64_t k = 0; k < p.k; ++k) {
      const double a = p.transpose_a ? p.a[k * p.lda + i] : p.a[i * p.lda + k];
      const T* b = p.transpose_b ? p.b + k : p.b + k * p.ldb;
      const std::int64_t step = p.transpose_b ? p.ldb : 1;
      for (std::int64_t j = 0; j < p.n; ++j) row[static_cast<std::size_t>(j)] += a * b[j * step];
    }
    for (std::int64_t j = 0; j < p.n; ++j) {
      T& c = p.c[i * p.ldc + j];
      c = static_cast<T>(p.accumulate ? c + row[static_cast<std::size_t>(j)]
                                      : row[static_cast<std::size_t>(j)]);
    }
  }
}

}  // namespace

void gemm(const Gemm<float>& problem) { product(problem); }
void gemm(const Gemm<double>& problem) { product(problem); }

}  // namespace qkv::inline v0::kernels::reference
