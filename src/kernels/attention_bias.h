// Masks and biases as the flash kernels meet them, tile by tile; and the gradient of a bias.
#pragma once

#include <cstdint>

#include "base/function_ref.h"
#include "kernels/attention.h"
#include "kernels/attention_flash.h"

namespace qkv::inline v0::kernels {

// What FlashHead::bias_context points to.
struct BiasContext {
  const AttentionMask* mask;
  std::int64_t b, h;
  std::int64_t offset;  // S - N
  const AttentionBiasGradient* gradient;
  // What the kernel does not see to itself: the window of the mask (null: it does), the slopes.
  const AttentionWindow* band;
  bool with_slopes;
};

// Whether fill_bias would do nothing to the tiles of all heads, without looking at arrays.
bool tile_is_open(const BiasContext& context, const FlashTile& tile);

// Writes lanes [0, tile.queries) of the bias alone.
FlashBias fill_bias(const void* context, const FlashTile& tile, float* bias);
void add_bias_gradient(const void* context, const FlashTile& tile, const float* gradients);

// Adds to the element of (b, h, i, j).
void add_to_bias(const AttentionBiasGradient& to, std::int64_t b, std::int64_t h, std::int64_t i,
                 std::int64_t j, double value);

// Overwrites `to` with the sum of what body(b, kv, sum, alone) adds to `sum` for every (sequence,
// key/value head). Calls that add to the same elements run in order, or in a few shares cut by
// shape alone that are added in order: no bit depends on the threads. alone: no other call runs
// now, so the body may use the pool itself. Memory beside `to`: up to 8 shares of up to 8 MiB.
void sum_bias_gradient(
    const AttentionBiasGradient& to, std::int64_t batch, std::int64_t kv_heads,
    FunctionRef<void(std::int64_t b, std::int64_t kv, const AttentionBiasGradient& sum, bool alone)>
        body);

}  // namespace qkv::inline v0::kernels
