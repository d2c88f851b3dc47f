#include "kernels/gemm.h"

#include <array>
#include <dnnl.hpp>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>

#include <omp.h>

#include "base/check.h"
#include "base/cpu.h"
#include "base/memory.h"
#include "base/signals.h"
#include "kernels/reference/gemm.h"

namespace qkv::inline v0::kernels {
namespace {

using dnnl::memory;

// Rows of the largest block of a product.
constexpr std::int64_t kBlockRows = 256;
// Columns that are packed apart.
constexpr std::int64_t kPackColumns = 256;
// thread_scratch slots: oneDNN's own scratch memory, and rows that had to be brought together.
constexpr int kScratchSlot = 0, kRowsSlot = 3;

// oneDNN takes its number of threads from the calling thread's OpenMP setting. Some of its
// generated code (2.6.3, the products of AVX2) uses the stack pointer as one more register: the
// frame of a signal handler would then be written into the heap. So signals wait while it runs.
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
  const SignalsHeld signals_;
  int previous_;
};

// The one engine; the instruction set must be lowered before oneDNN makes its first kernel.
const dnnl::engine& engine() {
  static const dnnl::engine e = [] {
    if (active_isa() == Isa::kAvx2) dnnl::set_max_cpu_isa(dnnl::cpu_isa::avx2);
    if (active_isa() == Isa::kGeneric) dnnl::set_max_cpu_isa(dnnl::cpu_isa::sse41);
    return dnnl::engine(dnnl::engine::kind::cpu, 0);
  }();
  return e;
}

dnnl::stream& stream() {
  thread_local dnnl::stream s(engine());
  return s;
}

memory::desc matrix(std::int64_t rows, std::int64_t columns, std::int64_t stride) {
  return {{rows, columns}, memory::data_type::f32, memory::dims{stride, 1}};
}

dnnl::matmul::primitive_desc product_desc(const memory::desc& a, const memory::desc& b,
                                          const memory::desc& c, bool accumulate, bool has_bias) {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
  if (has_bias)
    return {dnnl::matmul::desc(a, b, matrix(1, c.dims()[1], c.dims()[1]), c), attributes, engine()};
  return {dnnl::matmul::desc(a, b, c), attributes, engine()};
}

// Layout of a packed panel: what oneDNN picks for a middling number of rows.
memory::desc packed_layout(std::int64_t k, std::int64_t n) {
  static std::mutex mutex;
  static std::map<std::array<std::int64_t, 2>, memory::desc> known;
  const std::lock_guard lock(mutex);
  const auto [it, is_new] = known.try_emplace({k, n});
  if (is_new) {
    constexpr std::int64_t kRows = 64;
    const memory::desc any({k, n}, memory::data_type::f32, memory::format_tag::any);
    it->second =
        product_desc(matrix(kRows, k, k), any, matrix(kRows, n, n), false, false).weights_desc();
  }
  return it->second;
}

// A primitive with the memory objects that it is called with, so that a call only sets pointers.
// Each thread has its own.
struct Call {
  dnnl::primitive primitive;
  std::unordered_map<int, memory> arguments;
  std::size_t scratch_bytes = 0;

  void run() {
    if (scratch_bytes > 0)
      arguments.at(DNNL_ARG_SCRATCHPAD)
          .set_data_handle(thread_scratch(scratch_bytes, kScratchSlot));
    const OneThread one;
    primitive.execute(stream(), arguments);
    stream().wait();
  }
  void point(int argument, const void* data) {
    arguments.at(argument).set_data_handle(const_cast<void*>(data));
  }
};

template <std::size_t kSize>
using Calls = std::map<std::array<std::int64_t, kSize>, Call>;

memory unbound(const memory::desc& desc) { return {desc, engine(), nullptr}; }

// The product of m rows; made once per thread and kind (oneDNN shares the code behind it between
// threads).
Call& product_call(std::int64_t m, const PackedProduct& p) {
  thread_local Calls<4> calls;
  const bool has_bias = p.bias != nullptr;
  const auto [it, is_new] = calls.try_emplace({m, p.n, p.k, p.accumulate ? 1 : has_bias ? 2 : 0});
  Call& call = it->second;
  if (is_new) {
    const auto desc = product_desc(matrix(m, p.k, p.k), packed_layout(p.k, p.n),
                                   matrix(m, p.n, p.n), p.accumulate, has_bias);
    call.primitive = dnnl::matmul(desc);
    call.scratch_bytes = desc.scratchpad_desc().get_size();
    call.arguments = {{DNNL_ARG_SRC, unbound(desc.src_desc())},
                      {DNNL_ARG_WEIGHTS, unbound(desc.weights_desc())},
                      {DNNL_ARG_DST, unbound(desc.dst_desc())}};
    if (has_bias) call.arguments.emplace(DNNL_ARG_BIAS, unbound(desc.bias_desc()));
    if (call.scratch_bytes > 0)
      call.arguments.emplace(DNNL_ARG_SCRATCHPAD, unbound(desc.scratchpad_desc()));
  }
  return call;
}

Call& pack_call(std::int64_t ldb, bool transpose, std::int64_t k, std::int64_t n) {
  thread_local Calls<4> calls;
  const auto [it, is_new] = calls.try_emplace({ldb, transpose ? 1 : 0, k, n});
  Call& call = it->second;
  if (is_new) {
    const memory::desc plain({k, n}, memory::data_type::f32,
                             transpose ? memory::dims{1, ldb} : memory::dims{ldb, 1});
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    const dnnl::reorder::primitive_desc desc(engine(), plain, engine(), packed_layout(k, n),
                                             attributes);
    call.primitive = dnnl::reorder(desc);
    call.scratch_bytes = desc.scratchpad_desc().get_size();
    call.arguments = {{DNNL_ARG_FROM, unbound(plain)}, {DNNL_ARG_TO, unbound(packed_layout(k, n))}};
    if (call.scratch_bytes > 0)
      call.arguments.emplace(DNNL_ARG_SCRATCHPAD, unbound(desc.scratchpad_desc()));
  }
  return call;
}

// oneDNN's fast product takes dense rows only.
const float* dense_rows(const float* a, std::int64_t lda, std::int64_t rows, std::int64_t k) {
  float* dense = thread_scratch_of<float>(static_cast<std::size_t>(rows * k), kRowsSlot);
  for (std::int64_t r = 0; r < rows; ++r) std::copy_n(a + r * lda, k, dense + r * k);
  return dense;
}

// Runs f and turns oneDNN's errors into ours.
template <class F>
auto guarded(std::int64_t m, std::int64_t n, std::int64_t k, F&& f) {
  try {
    const OneThread one;
    return f();
  } catch (const dnnl::error& e) {
    fail<InternalError>("gemm", "expected oneDNN to take a product [{}, {}] x [{}, {}], got: {}", m,
                        k, k, n, e.what());
  }
}

}  // namespace

void gemm(const Gemm<double>& problem) { reference::gemm(problem); }
void gemm(const Gemm<float>& problem) { reference::gemm(problem); }

std::size_t packed_bytes(std::int64_t k, std::int64_t n) {
  return guarded(1, n, k, [&] { return packed_layout(k, n).get_size(); });
}

// Where the layout consists of blocks of columns one after the other, a range of columns has the
// very layout of a smaller matrix.
std::int64_t packed_columns(std::int64_t k, std::int64_t n) {
  if (n <= kPackColumns) return n;
  return guarded(1, n, k, [&] {
    const auto whole = packed_layout(k, n).data.format_desc.blocking,
               part = packed_layout(k, kPackColumns).data.format_desc.blocking;
    bool same = whole.inner_nblks > 0 && whole.inner_nblks == part.inner_nblks &&
                whole.strides[0] == part.strides[0] && whole.strides[1] == part.strides[1];
    for (int i = 0; same && i < whole.inner_nblks; ++i) {
      same = whole.inner_blks[i] == part.inner_blks[i] && whole.inner_idxs[i] == part.inner_idxs[i];
      if (whole.inner_idxs[i] == 1) same = same && kPackColumns % whole.inner_blks[i] == 0;
    }
    same = same && whole.strides[1] >= whole.strides[0];  // columns outermost
    return same ? kPackColumns : n;
  });
}

void pack(const float* b, std::int64_t ldb, bool transpose, std::int64_t k, std::int64_t n,
          void* packed) {
  guarded(1, n, k, [&] {
    Call& call = pack_call(ldb, transpose, k, n);
    call.point(DNNL_ARG_FROM, b);
    call.point(DNNL_ARG_TO, packed);
    call.run();
  });
}

void multiply_packed(const PackedProduct& problem) {
  guarded(problem.m, problem.n, problem.k, [&] {
    std::int64_t block = kBlockRows;
    for (std::int64_t row = 0; row < problem.m; row += block) {
      while (block > problem.m - row) block /= 2;
      const float* a = problem.a + row * problem.lda;
      if (problem.lda != problem.k) a = dense_rows(a, problem.lda, block, problem.k);
      Call& call = product_call(block, problem);
      call.point(DNNL_ARG_SRC, a);
      call.point(DNNL_ARG_WEIGHTS, problem.packed);
      if (problem.bias != nullptr) call.point(DNNL_ARG_BIAS, problem.bias);
      call.point(DNNL_ARG_DST, problem.c + row * problem.n);
      call.run();
    }
  });
}

}  // namespace qkv::inline v0::kernels
