// The attention of AMX with its tiles emulated, on the vectors of QKV_ISA.
#include "kernels/simd/attention_pairs_backward.h"
#include "kernels/simd/emulated_tiles.h"

namespace qkv::inline v0::kernels::QKV_ISA {

using Engine = TileEngine<EmulatedUnit>;

extern const FlashTable kEmulatedTable;
const FlashTable kEmulatedTable = {pair_forward<Engine>,
                                   pair_backward<Engine>,
                                   nullptr,
                                   nullptr,
                                   nullptr,
                                   Engine::kColumns,
                                   pair_forward_scratch<Engine>,
                                   pair_backward_scratch<Engine>};

}  // namespace qkv::inline v0::kernels::QKV_ISA
