#include "kernels/quantized.h"

#include <vector>

#include "base/convert.h"
#include "kernels/registry.h"
#include "kernels/simd_tables.h"

namespace qkv::inline v0::kernels {

QKV_SIMD_TABLE(QuantizedKernels, kQuantized)

namespace {
constexpr Implementation<QuantizedKernels> kImplementations[] = {
    QKV_SIMD_LIST(kQuantized), {kReference, Isa::kGeneric, &reference::kQuantized}};
}  // namespace

const QuantizedKernels& quantized_kernels() { return pick<QuantizedKernels>(kImplementations); }

const float* half_table() {
  static const std::vector<float> table = [] {
    std::vector<float> values(65536);
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = to_float(Float16{static_cast<std::uint16_t>(i)});
    return values;
  }();
  return table.data();
}

}  // namespace qkv::inline v0::kernels
