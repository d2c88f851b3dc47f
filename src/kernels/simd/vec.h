// One register of the instruction set this file is compiled for, behind one set of names.
//
// Only files of kernels/simd include it; each is compiled once per instruction set, with QKV_ISA
// naming the namespace. Everything is QKV_INLINE: an ISA object must not define a weak symbol that
// another one could be linked against. Do not call templates or inline functions of the standard
// library from such files for the same reason.
//
// F32: kLanes floats. U32: as many 32-bit integers. F64: kLanes / 2 doubles. Mask: one flag per
// 32-bit lane.
//   load/store (unaligned), load/store with a Mask (other lanes read as 0 / are left alone and are
//   never touched in memory), first_lanes(n), set(x), + - * /, fma(a, b, c) = a b + c, fnma(a, b,
//   c) = c - a b, min/max (the second operand if either is NaN), abs, sqrt, reciprocal (for 2^-100
//   < |a| < 2^126), round (to even), comparisons to Mask (false for NaN, != is true), select(m, a,
//   b), &, |, ~, any, all, bits (lane i is bit i), sum, hmax, hmin, first_lane, swap_pairs (lanes 2
//   i and 2 i + 1), transpose_quads (4 x 4 in every four
//   lanes), store_quad, widen_low/high and load_wide to F64, as_u32/as_f32,
//   to_i32/to_f32, scale2(x, n) = x 2^n for |n| <= 250 (n a float with a whole value), mul_wide (32
//   x 32 bits to high and low words).
#pragma once

#include <cstdint>

#define QKV_INLINE [[gnu::always_inline]] inline

#if defined(QKV_ISA_avx512)
#include "kernels/simd/vec_avx512.h"
#elif defined(QKV_ISA_avx2)
#include "kernels/simd/vec_avx2.h"
#else
#include "kernels/simd/vec_generic.h"
#endif

#include "kernels/simd/vec_loop.h"
#include "kernels/simd/vec_math.h"
