// Group-quantised storage: blocks of elements that share a scale, as GGUF files hold them.
#pragma once

#include <cstdint>

namespace qkv::inline v0 {

enum class BlockType : std::uint8_t {
  kQ40,  // fp16 d, 16 bytes: x = d (q - 8)
  kQ41,  // fp16 d and m, 16 bytes: x = d q + m
  kQ50,  // as Q4_0 with a fifth bit: x = d (q - 16)
  kQ51,  // as Q4_1 with a fifth bit
  kQ80,  // fp16 d, 32 int8: x = d q
  kQ4K,  // fp16 d and m, 8 groups of 32 with 6-bit scales and minima
  kQ5K,  // as Q4_K with a fifth bit
  kQ6K   // fp16 d, 16 groups of 16 with int8 scales: x = d s (q - 32)
};
inline constexpr int kBlockTypes = 8;

struct BlockLayout {
  const char* name;  // as GGUF tools write it
  int elements;      // of one block; rows are whole blocks
  int bytes;         // of one block
};

constexpr BlockLayout block_layout(BlockType type) {
  constexpr BlockLayout kLayouts[kBlockTypes] = {
      {"Q4_0", 32, 18}, {"Q4_1", 32, 20},   {"Q5_0", 32, 22},   {"Q5_1", 32, 24},
      {"Q8_0", 32, 34}, {"Q4_K", 256, 144}, {"Q5_K", 256, 176}, {"Q6_K", 256, 210}};
  return kLayouts[static_cast<int>(type)];
}

}  // namespace qkv::inline v0
