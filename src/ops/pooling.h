// One vector per sequence.
#pragma once

#include <string_view>

#include "qkv/layout.h"
#include "qkv/tensor.h"

namespace qkv::inline v0::ops {

enum class Pooling { kFirst, kMean, kMax, kLast };
Pooling parse_pooling(
    std::string_view name);  // "first", "mean", "max", "last"; ConfigError otherwise
const char* pooling_name(Pooling pooling);

// x: [T, C] -> [B, C]. A sequence of length 0 is a ShapeError. fp32, fp64. Gradient below (max: to
// the first maximum).
Tensor pool(const Tensor& x, const RaggedLayout& layout, Pooling pooling);
Tensor pool_backward(const Tensor& dy, const Tensor& x, const RaggedLayout& layout,
                     Pooling pooling);

}  // namespace qkv::inline v0::ops
