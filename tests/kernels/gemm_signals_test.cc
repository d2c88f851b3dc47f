// Signals that arrive in the middle of a product.
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>
#include <sys/time.h>

#include "qkv/tensor.h"

#include "base/random.h"
#include "kernels/gemm.h"

using namespace qkv;

namespace {

std::atomic<int> g_taken{0};

// Uses the stack below it, as handlers do.
void on_alarm(int) {
  volatile char below[2048];
  for (volatile char& c : below) c = '\xFF';
  g_taken.fetch_add(1 + below[0] - below[1]);
}

class Alarms {
 public:
  Alarms() {
    struct sigaction action {};
    action.sa_handler = on_alarm;
    action.sa_flags = SA_RESTART;
    sigaction(SIGALRM, &action, &previous_);
    const itimerval every{{0, 200}, {0, 200}};
    setitimer(ITIMER_REAL, &every, nullptr);
  }
  ~Alarms() {
    const itimerval never{};
    setitimer(ITIMER_REAL, &never, nullptr);
    sigaction(SIGALRM, &previous_, nullptr);
  }

 private:
  struct sigaction previous_ {};
};

Tensor random_tensor(const Shape& shape, std::uint64_t seed) {
  const Tensor out = Tensor::empty(shape);
  Random random(seed);
  for (std::int64_t i = 0; i < out.numel(); ++i) {
    out.data<float>()[i] = static_cast<float>(random.normal());
  }
  return out;
}

}  // namespace

// oneDNN's generated code may use the stack pointer as one more register, and a handler's frame
// would land in the heap.
TEST(Gemm, a_signal_during_a_product_harms_neither_result_nor_heap) {
  constexpr std::int64_t kM = 256, kN = 256, kK = 512;
  const Tensor a = random_tensor({kM, kK}, 1), b = random_tensor({kN, kK}, 2);
  const auto product = [&](const Tensor& c) {
    const Tensor packed =
        Tensor::empty({static_cast<std::int64_t>(kernels::packed_bytes(kK, kN))}, DType::kUInt8);
    kernels::pack(b.data<float>(), kK, true, kK, kN, packed.raw());
    kernels::multiply_packed({.m = kM,
                              .n = kN,
                              .k = kK,
                              .a = a.data<float>(),
                              .lda = kK,
                              .packed = packed.raw(),
                              .c = c.data<float>()});
  };
  const Tensor right = Tensor::empty({kM, kN}), got = Tensor::empty({kM, kN});
  product(right);
  const Alarms alarms;
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0;
       g_taken.load() < 300 && std::chrono::steady_clock::now() - start < std::chrono::seconds(5);
       ++i) {
    product(got);
    ASSERT_EQ(std::memcmp(got.raw(), right.raw(), right.nbytes()), 0) << "product " << i;
    const std::vector<float> heap(static_cast<std::size_t>(40'000 + 1000 * (i % 7)),
                                  1.0f);  // malloc and free notice
    ASSERT_EQ(heap.back(), 1.0f);
  }
  EXPECT_GT(g_taken.load(), 0);
}
