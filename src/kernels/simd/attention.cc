// The flash kernels of one instruction set.
#include "kernels/simd/attention_backward.h"

namespace qkv::inline v0::kernels::QKV_ISA {

extern const FlashTable kFlashTable;
const FlashTable kFlashTable = {forward_queries, backward_keys, kLanes};

}  // namespace qkv::inline v0::kernels::QKV_ISA
