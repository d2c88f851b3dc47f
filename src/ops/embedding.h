// Table look-up, and positions.
#pragma once

#include <cstdint>
#include <span>

#include "qkv/tensor.h"

#include "ops/linear.h"

namespace qkv::inline v0::ops {

// y[t] = table[ids[t]] * scale.  table: [V, C] -> [T, C]. ArgumentError naming the id and position
// if outside [0, V). `where` names the table in the message ("token embedding", "position
// embedding").
Tensor embedding(std::span<const std::int32_t> ids, const Tensor& table, double scale = 1,
                 const char* where = "embedding");
// dtable[ids[t]] += dy[t] * scale, in token order for each row: deterministic. kOverwrite zeroes
// dtable first.
void embedding_backward(const Tensor& dy, std::span<const std::int32_t> ids, const Tensor& dtable,
                        double scale, Into into);

// Sinusoidal codes (Vaswani et al. 2017), neighbouring channels: row p: sin(p w_0), cos(p w_0),
// sin(p w_1), ... with w_i = 10000^(-2 i / C). Odd C ends with a sine. Angles in double. [count,
// C]. No gradient: the table is fixed.
Tensor sinusoidal_table(std::int64_t count, std::int64_t width, DType dtype = DType::kFloat32);

}  // namespace qkv::inline v0::ops
