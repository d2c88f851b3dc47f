// Attention on products of bf16, for one of the instruction sets that have them.
#include "kernels/simd/attention_pairs_backward.h"
#if defined(QKV_ISA_amx)
#include "kernels/simd/attention_tiles.h"
#endif

namespace qkv::inline v0::kernels::QKV_ISA {

#if defined(QKV_ISA_amx)
using Engine = TileEngine<AmxUnit>;
#else
using Engine = DotEngine;
#endif

extern const FlashTable kPairTable;
const FlashTable kPairTable = {pair_forward<Engine>,
                               pair_backward<Engine>,
                               nullptr,
                               nullptr,
                               nullptr,
                               Engine::kColumns,
                               pair_forward_scratch<Engine>,
                               pair_backward_scratch<Engine>};

}  // namespace qkv::inline v0::kernels::QKV_ISA
