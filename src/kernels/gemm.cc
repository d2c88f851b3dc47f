#include "kernels/gemm.h"

#include <string_view>

#include <dnnl.h>
#include <omp.h>

#include "base/check.h"
#include "kernels/reference/gemm.h"
#include "kernels/registry.h"

namespace qkv::inline v0::kernels {
namespace {

// oneDNN takes its number of threads from the calling thread's OpenMP setting.
class OneThread {
 public:
  OneThread() : previous_(omp_get_max_threads()) {
    if (previous_ != 1) omp_set_num_threads(1);
  }
  ~OneThread() {
    if (previous_ != 1) omp_set_num_threads(previous_);
  }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int previous_;
};

}  // namespace

void gemm(const Gemm<double>& problem) { reference::gemm(problem); }

void gemm(const Gemm<float>& problem) {
  if (problem.m == 0 || problem.n == 0) return;
  const char* forced = forced_implementation();
  if (problem.k == 0 || (forced != nullptr && std::string_view(forced) == kReference))
    return reference::gemm(problem);
  const OneThread one;
  const dnnl_status_t status =
      dnnl_sgemm(problem.transpose_a ? 'T' : 'N', problem.transpose_b ? 'T' : 'N', problem.m,
                 problem.n, problem.k, 1.0f, problem.a, problem.lda, problem.b, problem.ldb,
                 problem.accumulate ? 1.0f : 0.0f, problem.c, problem.ldc);
  require<InternalError>(status == dnnl_success, "gemm",
                         "expected oneDNN to take the product {} x {} x {}, got status {}",
                         problem.m, problem.n, problem.k, static_cast<int>(status));
}

}  // namespace qkv::inline v0::kernels
