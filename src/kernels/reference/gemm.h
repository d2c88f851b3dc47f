// The matrix product by its definition.
#pragma once

#include "kernels/gemm.h"

namespace qkv::inline v0::kernels::reference {

// Every element is one sum in double, in the order of k.
void gemm(const Gemm<float>& problem);
void gemm(const Gemm<double>& problem);

}  // namespace qkv::inline v0::kernels::reference
