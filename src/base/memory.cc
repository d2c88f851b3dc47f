#include "base/memory.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <vector>

#include <sys/mman.h>

namespace qkv::inline v0 {
namespace {

constexpr std::size_t kAlign = 64;

// In front of each block; as wide as the alignment.
struct alignas(kAlign) Header {
  std::size_t size = 0;  // of the block behind it
};
Header* header_of(void* block) { return static_cast<Header*>(block) - 1; }

constexpr bool kCacheBlocks = kSpareBytes > 0;

// Eight classes per power of two: at most 12.5 % of a block is unused, and lengths that vary from
// step to step still hit.
std::size_t size_class(std::size_t bytes) {
  if (!kCacheBlocks) return std::max<std::size_t>(bytes, 1);
  const std::size_t wanted = std::max<std::size_t>(bytes + kSpareBytes, 512);
  const std::size_t step = std::max<std::size_t>(std::bit_floor(wanted) / 8, kAlign);
  return (wanted + step - 1) / step * step;
}

// Large blocks lie in huge pages where the system has them: fewer faults, fewer misses of the
// address cache when rows lie far apart.
constexpr std::size_t kHugePage = std::size_t{2} << 20;

void* new_block(std::size_t size) {
  void* memory = nullptr;  // not aligned_alloc: the size need not be a multiple of the alignment
  const std::size_t bytes = size + sizeof(Header);
  const bool is_large = kCacheBlocks && bytes >= kHugePage;
  if (posix_memalign(&memory, is_large ? kHugePage : kAlign, bytes) != 0) return nullptr;
  if (is_large) madvise(memory, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
  return new (memory) Header{size} + 1;
}

void delete_block(void* block) { std::free(header_of(block)); }

struct Allocator {
  std::mutex mutex;
  std::map<std::size_t, std::vector<void*>> cached;  // by size; no empty lists
  std::array<MemoryUse, kMemoryKinds> kinds;
  MemoryUse total;
};
Allocator& allocator() {
  static auto* a = new Allocator;  // outlives static tensors
  return *a;
}

void poison([[maybe_unused]] void* block, [[maybe_unused]] std::size_t bytes) {
#ifndef NDEBUG
  std::memset(block, 0xFF, bytes);  // NaN in every floating type
#endif
}

// In debug builds: ends the process if somebody wrote behind the `bytes` that were asked for. It
// sees what AddressSanitizer cannot: code that a library makes at run time.
void check_tail([[maybe_unused]] const void* block, [[maybe_unused]] std::size_t bytes) {
#ifndef NDEBUG
  const auto* byte = static_cast<const unsigned char*>(block);
  for (std::size_t i = bytes; i < size_class(bytes); ++i) {
    if (byte[i] != 0xFF) std::abort();
  }
#endif
}

// A cached block of this size or up to a quarter more: batches whose number of tokens varies from
// step to step then share their blocks instead of keeping a set per size. Null if there is none.
void* take_cached(Allocator& a, std::size_t size) {
  const auto it = a.cached.lower_bound(size);
  if (it == a.cached.end() || it->first > size + size / 4) return nullptr;
  void* block = it->second.back();
  it->second.pop_back();
  if (it->second.empty()) a.cached.erase(it);
  return block;
}

thread_local MemoryKind t_kind = MemoryKind::kOther;

struct Scratch {
  struct Slot {
    void* block = nullptr;
    std::size_t bytes = 0;
  };
  std::array<Slot, 8> slots;
  ~Scratch() {
    for (Slot& slot : slots) {
      if (slot.block != nullptr) free_bytes(slot.block, slot.bytes, MemoryKind::kWorkspace);
    }
  }
};

}  // namespace

const char* memory_kind_name(MemoryKind kind) {
  constexpr const char* kNames[kMemoryKinds] = {"weights",     "gradients", "optimizer",
                                                "activations", "workspace", "other"};
  return kNames[static_cast<int>(kind)];
}

void* allocate_bytes(std::size_t bytes, MemoryKind kind) {
  const std::size_t size = size_class(bytes);
  Allocator& a = allocator();
  void* block = nullptr;
  {
    const std::lock_guard lock(a.mutex);
    for (MemoryUse* use : {&a.kinds[static_cast<std::size_t>(kind)], &a.total}) {
      use->live += size;
      use->peak = std::max(use->peak, use->live);
    }
    block = take_cached(a, size);
  }
  if (block == nullptr) {
    block = new_block(size);
    if (block == nullptr) {
      release_cached_memory();
      block = new_block(size);
    }
    if (block == nullptr) {
      const std::lock_guard lock(a.mutex);
      a.kinds[static_cast<std::size_t>(kind)].live -= size;
      a.total.live -= size;
      throw std::bad_alloc();
    }
  }
  poison(block, size);
  return block;
}

void free_bytes(void* block, std::size_t bytes, MemoryKind kind) noexcept {
  const std::size_t size = size_class(bytes);
  check_tail(block, bytes);
  poison(block, size);
  Allocator& a = allocator();
  const std::lock_guard lock(a.mutex);
  a.kinds[static_cast<std::size_t>(kind)].live -= size;
  a.total.live -= size;
  if (!kCacheBlocks) return delete_block(block);
  try {
    a.cached[header_of(block)->size].push_back(block);
  } catch (const std::bad_alloc&) {
    std::erase_if(a.cached, [](const auto& list) { return list.second.empty(); });
    delete_block(block);
  }
}

MemoryUse memory_use(MemoryKind kind) {
  Allocator& a = allocator();
  const std::lock_guard lock(a.mutex);
  return a.kinds[static_cast<std::size_t>(kind)];
}

MemoryUse memory_use() {
  Allocator& a = allocator();
  const std::lock_guard lock(a.mutex);
  return a.total;
}

void reset_memory_peaks() {
  Allocator& a = allocator();
  const std::lock_guard lock(a.mutex);
  for (MemoryUse& use : a.kinds) use.peak = use.live;
  a.total.peak = a.total.live;
}

void release_cached_memory() {
  Allocator& a = allocator();
  const std::lock_guard lock(a.mutex);
  for (auto& [size, blocks] : a.cached) {
    for (void* block : blocks) delete_block(block);
  }
  a.cached.clear();
}

MemoryScope::MemoryScope(MemoryKind kind) : previous_(t_kind) { t_kind = kind; }
MemoryScope::~MemoryScope() { t_kind = previous_; }
MemoryKind current_memory_kind() { return t_kind; }

void* thread_scratch(std::size_t bytes, int slot) {
  thread_local Scratch scratch;
  Scratch::Slot& s = scratch.slots.at(static_cast<std::size_t>(slot));
  if (s.bytes < bytes) {
    if (s.block != nullptr) free_bytes(s.block, s.bytes, MemoryKind::kWorkspace);
    s = {};
    s.block = allocate_bytes(bytes, MemoryKind::kWorkspace);
    s.bytes = bytes;
  }
  return s.block;
}

}  // namespace qkv::inline v0
