#include "base/memory.h"

#include <cstdint>
#include <cstring>
#include <limits>
#include <new>
#include <set>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace {
using namespace qkv;

TEST(Memory, blocks_are_aligned_and_have_spare_bytes) {
  for (const std::size_t bytes : {0, 1, 63, 64, 65, 1000, 4096, 100000, 1 << 20}) {
    void* block = allocate_bytes(bytes, MemoryKind::kOther);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block) % 64, 0u);
    std::memset(block, 1, bytes);
    const volatile unsigned char* read = static_cast<const unsigned char*>(block);
    for (std::size_t i = 0; i < kSpareBytes; ++i) (void)read[bytes + i];
    free_bytes(block, bytes, MemoryKind::kOther);
  }
}

TEST(Memory, the_account_is_kept_by_kind) {
  reset_memory_peaks();
  const std::size_t before = memory_use(MemoryKind::kGradients).live, total = memory_use().live;
  void* a = allocate_bytes(100000, MemoryKind::kGradients);
  void* b = allocate_bytes(50000, MemoryKind::kGradients);
  EXPECT_GE(memory_use(MemoryKind::kGradients).live, before + 150000);
  EXPECT_LE(memory_use(MemoryKind::kGradients).live, before + 150000 * 9 / 8 + 4096);
  EXPECT_EQ(memory_use().live - total, memory_use(MemoryKind::kGradients).live - before);
  free_bytes(a, 100000, MemoryKind::kGradients);
  free_bytes(b, 50000, MemoryKind::kGradients);
  EXPECT_EQ(memory_use(MemoryKind::kGradients).live, before);
  EXPECT_GE(memory_use(MemoryKind::kGradients).peak, before + 150000);
  reset_memory_peaks();
  EXPECT_EQ(memory_use(MemoryKind::kGradients).peak, before);
  EXPECT_STREQ(memory_kind_name(MemoryKind::kGradients), "gradients");
}

#ifndef QKV_EXACT_BLOCKS  // those are not kept
TEST(Memory, freed_blocks_are_used_again) {
  release_cached_memory();
  void* block = allocate_bytes(123456, MemoryKind::kOther);
  free_bytes(block, 123456, MemoryKind::kOther);
  void* again = allocate_bytes(123400, MemoryKind::kOther);
  EXPECT_EQ(again, block);
  free_bytes(again, 123400, MemoryKind::kOther);
  release_cached_memory();
}

TEST(Memory, blocks_serve_sizes_that_are_a_little_smaller) {
  constexpr std::size_t kBytes = 10'000'000;
  void* large = allocate_bytes(kBytes, MemoryKind::kOther);
  free_bytes(large, kBytes, MemoryKind::kOther);
  void* near = allocate_bytes(kBytes * 85 / 100, MemoryKind::kOther);
  EXPECT_EQ(near, large);
  free_bytes(near, kBytes * 85 / 100, MemoryKind::kOther);
  void* small = allocate_bytes(kBytes / 2, MemoryKind::kOther);
  EXPECT_NE(small, large);  // that would waste half of it
  void* again = allocate_bytes(kBytes, MemoryKind::kOther);
  EXPECT_EQ(again, large);
  free_bytes(small, kBytes / 2, MemoryKind::kOther);
  free_bytes(again, kBytes, MemoryKind::kOther);
}
#endif

#ifndef QKV_SANITIZED  // sanitizers end the process instead
TEST(Memory, too_much_is_an_exception_and_leaves_the_account_right) {
  const std::size_t before = memory_use().live;
  EXPECT_THROW(allocate_bytes(std::numeric_limits<std::size_t>::max() / 4, MemoryKind::kOther),
               std::bad_alloc);
  EXPECT_EQ(memory_use().live, before);
}
#endif

TEST(Memory, scopes_nest_and_belong_to_a_thread) {
  EXPECT_EQ(current_memory_kind(), MemoryKind::kOther);
  {
    const MemoryScope outer(MemoryKind::kWeights);
    EXPECT_EQ(current_memory_kind(), MemoryKind::kWeights);
    {
      const MemoryScope inner(MemoryKind::kActivations);
      EXPECT_EQ(current_memory_kind(), MemoryKind::kActivations);
    }
    EXPECT_EQ(current_memory_kind(), MemoryKind::kWeights);
    std::thread([] { EXPECT_EQ(current_memory_kind(), MemoryKind::kOther); }).join();
  }
  EXPECT_EQ(current_memory_kind(), MemoryKind::kOther);
}

TEST(Memory, scratch_stays_until_it_must_grow) {
  auto* small = thread_scratch_of<float>(100, 3);
  small[99] = 1;
  EXPECT_EQ(thread_scratch_of<float>(50, 3), small);
  EXPECT_NE(static_cast<void*>(thread_scratch_of<float>(100, 4)), static_cast<void*>(small));
  auto* large = thread_scratch_of<float>(100000, 3);
  large[99999] = 1;
  void* other = nullptr;
  std::thread([&] { other = thread_scratch(100, 3); }).join();
  EXPECT_NE(other, static_cast<void*>(large));
  EXPECT_ANY_THROW(thread_scratch(1, 8));
}

TEST(Memory, threads_may_allocate_at_once) {
  const std::size_t before = memory_use().live;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (std::size_t i = 0; i < 500; ++i) {
        const std::size_t bytes = 64 + i * 100 + static_cast<std::size_t>(t);
        auto* block = static_cast<unsigned char*>(allocate_bytes(bytes, MemoryKind::kWorkspace));
        block[0] = block[bytes - 1] = static_cast<unsigned char>(t);
        free_bytes(block, bytes, MemoryKind::kWorkspace);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(memory_use().live, before);
}

#ifndef NDEBUG
TEST(Memory, debug_builds_poison_new_blocks) {
  auto* block = static_cast<float*>(allocate_bytes(400, MemoryKind::kOther));
  for (int i = 0; i < 100; ++i) EXPECT_NE(block[i], block[i]);
  free_bytes(block, 400, MemoryKind::kOther);
}
#endif

}  // namespace
