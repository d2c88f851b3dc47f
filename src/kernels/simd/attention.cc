// The attention kernels of one instruction set.
#include "kernels/simd/attention_backward.h"
#include "kernels/simd/attention_decode.h"
#include "kernels/simd/attention_linear.h"
#include "kernels/simd/attention_narrow.h"

namespace qkv::inline v0::kernels::QKV_ISA {

extern const FlashTable kFlashTable;
const FlashTable kFlashTable = {forward_queries, backward_range, decode_keys, widen_rows,
                                narrow_rows,     kLanes,         nullptr,     nullptr};

extern const LinearTable kLinearTable;
const LinearTable kLinearTable = {linear_forward, linear_backward, kLanes};

}  // namespace qkv::inline v0::kernels::QKV_ISA
