// Memory of tensors: a caching allocator with an account per kind.
//
// Freed blocks are kept by size class and handed out again, so that a training step allocates from
// the system only once; release_cached_memory() gives them back. Blocks are 64-byte aligned and
// have kSpareBytes readable bytes at the end, which nobody may write. Debug builds fill new and
// released memory with NaN patterns and check the spare bytes. All functions are thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>

// Under AddressSanitizer every block comes from the system with its exact size and is not kept, so
// that a read or write behind a tensor, or of a released one, is seen.
#if defined(__SANITIZE_ADDRESS__)
#define QKV_EXACT_BLOCKS 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define QKV_EXACT_BLOCKS 1
#endif
#endif

namespace qkv::inline v0 {

#if defined(QKV_EXACT_BLOCKS)
inline constexpr std::size_t kSpareBytes = 0;
#else
inline constexpr std::size_t kSpareBytes = 64;
#endif

enum class MemoryKind : std::uint8_t {
  kWeights,
  kGradients,
  kOptimizer,
  kActivations,
  kWorkspace,
  kOther
};
inline constexpr int kMemoryKinds = 6;
const char* memory_kind_name(MemoryKind kind);

struct MemoryUse {
  std::size_t live = 0;  // bytes handed out now
  std::size_t peak = 0;  // highest since reset_memory_peaks()
};
MemoryUse memory_use(MemoryKind kind);
MemoryUse memory_use();  // all kinds together
void reset_memory_peaks();
void release_cached_memory();

// Allocates; never null (IoError-free: throws std::bad_alloc).
void* allocate_bytes(std::size_t bytes, MemoryKind kind);
void free_bytes(void* block, std::size_t bytes, MemoryKind kind) noexcept;

// The kind that tensors made in this thread belong to while the scope lives (default kOther).
class MemoryScope {
 public:
  explicit MemoryScope(MemoryKind kind);
  ~MemoryScope();
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

 private:
  MemoryKind previous_;
};
MemoryKind current_memory_kind();

// Scratch memory of one kernel call: grows, never shrinks, one per thread. Contents are
// unspecified. The pointer is valid until the next call with the same slot in the same thread.
// `slot` keeps nested users apart (0..7).
void* thread_scratch(std::size_t bytes, int slot);
template <class T>
T* thread_scratch_of(std::size_t count, int slot) {
  return static_cast<T*>(thread_scratch(count * sizeof(T), slot));
}

}  // namespace qkv::inline v0
