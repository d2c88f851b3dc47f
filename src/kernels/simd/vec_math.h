// Elementary functions and random numbers on vectors; the same source for every instruction set.
// See vec.h.
//
// Polynomials are Chebyshev fits made for this file; accuracy is tested over the range in
// tests/kernels.
#pragma once

#include <cstdint>

namespace qkv::inline v0::kernels::QKV_ISA {

// e^x for -104 <= x <= 89, or NaN. Accuracy: 2 ULP.
QKV_INLINE F32 exp_bounded(F32 x) {
  // A number of 1.5 2^23 has no fraction: adding and subtracting it rounds, cheaper than round().
  const F32 n = fma(x, set(1.44269504089f), set(12582912.0f)) - set(12582912.0f);
  F32 r = fnma(n, set(0.693145751953125f),
               x);  // ln 2 in two parts, the first with 15 bits: n * part is exact
  r = fnma(n, set(1.42860682030942e-6f), r);
  F32 p = set(0.00139261761199f);
  p = fma(p, r, set(0.00836317307451f));
  p = fma(p, r, set(0.0416665546621f));
  p = fma(p, r, set(0.166665770256f));
  p = fma(p, r, set(0.5f));
  return scale2(fma(p, r * r, r) + set(1.0f), n);
}

// e^x for all x: 0 below -104, inf above 88.73, NaN for NaN; denormal results are kept. Accuracy: 2
// ULP.
QKV_INLINE F32 exp(F32 x) {
  // The bounds keep NaN: the second operand is returned. scale2 takes the exponents that they
  // leave.
  return exp_bounded(min(set(89.0f), max(set(-104.0f), x)));
}

// e^x for x <= 0 or NaN: as exp.
QKV_INLINE F32 exp_below(F32 x) { return exp_bounded(max(set(-104.0f), x)); }

// 2^x for all x: 0 below -150, inf from 128, NaN for NaN. Accuracy: 2 ULP.
QKV_INLINE F32 exp2(F32 x) {
  x = min(set(129.0f), max(set(-151.0f), x));
  const F32 n = round(x), r = x - n;
  F32 p = set(0.000154531629451f);
  p = fma(p, r, set(0.00133908633647f));
  p = fma(p, r, set(0.00961808255728f));
  p = fma(p, r, set(0.0555035711422f));
  p = fma(p, r, set(0.240226507606f));
  p = fma(p, r, set(0.693147188026f));
  return scale2(fma(p, r, set(1.0f)), n);
}

// 2^x with one term less: relative error 2.6e-7 (4 ULP). For softmax inner loops.
QKV_INLINE F32 exp2_short(F32 x) {
  x = min(set(129.0f), max(set(-151.0f), x));
  const F32 n = round(x), r = x - n;
  F32 p = set(0.00133813025373f);
  p = fma(p, r, set(0.00966636851539f));
  p = fma(p, r, set(0.055503810138f));
  p = fma(p, r, set(0.24022349038f));
  p = fma(p, r, set(0.69314718056f));
  return scale2(fma(p, r, set(1.0f)), n);
}

// 1 / (1 + e^-x) and the rest to 1, each to 4 ULP, for x bounded to [-87, 87] (beyond, within 2e-38
// of 0 or 1).
struct Sigmoid {
  F32 x, value, rest;  // the bounded x
};
QKV_INLINE Sigmoid sigmoid(F32 x) {
  x = min(set(87.0f), max(set(-87.0f), x));  // NaN stays
  const F32 e = exp_bounded(zero() - x), value = reciprocal(set(1.0f) + e);
  return {x, value, e * value};
}

// tanh(x) for all x, NaN for NaN. Accuracy: 4 ULP, relative near 0 too: from e^(-2 |x|) - 1, whose
// part of the exponent 0 is its series without the 1.
QKV_INLINE F32 tanh_value(F32 x) {
  const F32 y = max(set(-40.0f), set(-2.0f) * abs(x));
  const F32 n = fma(y, set(1.44269504089f), set(12582912.0f)) - set(12582912.0f);
  F32 r = fnma(n, set(0.693145751953125f), y);
  r = fnma(n, set(1.42860682030942e-6f), r);
  F32 p = set(0.00139261761199f);
  p = fma(p, r, set(0.00836317307451f));
  p = fma(p, r, set(0.0416665546621f));
  p = fma(p, r, set(0.166665770256f));
  p = fma(p, r, set(0.5f));
  const F32 power = scale2(set(1.0f), n);
  const F32 e = fma(fma(p, r * r, r), power, power - set(1.0f));
  const F32 size = (zero() - e) / (set(2.0f) + e);
  return as_f32(as_u32(size) | (as_u32(x) & set(0x80000000u)));
}

// Upper tail Q(|x|) = (1 - erf(|x| / sqrt 2)) / 2 and density e^(-x^2 / 2) / sqrt(2 pi) of the
// normal distribution: Phi(x) = x > 0 ? 1 - Q : Q; beyond |x| = 12.5 (4e-36) as there. NaN stays. Q
// = e^(-x^2 / 2) times a polynomial in (|x|
// - 3.5) / (|x| + 3.5) over |x| + 3.5. Accuracy: absolute 2e-7; relative 4e-7 (1 + x^2).
constexpr float kNormalTail[10] = {
    0.7444160796f,  -0.5655617744f,   0.3154246642f,     -0.116052396f,    0.01741084709f,
    0.00649068442f, -0.003193030794f, -0.0004975321297f, 0.0004450328682f, 0.0001246101989f};
struct NormalTail {
  F32 tail, density;
};
QKV_INLINE NormalTail normal_tail(F32 x) {
  const F32 a = min(set(12.5f), abs(x));  // beyond, both would be denormal (slow) and then 0
  const F32 e = exp_bounded(set(-0.5f) * a * a);
  const F32 inverse = reciprocal(a + set(3.5f));
  const F32 t = (a - set(3.5f)) * inverse;
  F32 p = set(kNormalTail[9]);
  for (int i = 8; i >= 0; --i) p = fma(p, t, set(kNormalTail[i]));
  return {p * inverse * e, e * set(0.3989422804014327f)};
}

// Philox4x32-10, one block per lane; the same numbers as qkv::philox. counter is replaced by the
// result.
struct PhiloxVectors {
  U32 word[4];
};
QKV_INLINE PhiloxVectors philox(std::uint64_t key, PhiloxVectors c) {
  std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  for (int i = 0; i < 10; ++i) {
    const WideProduct p0 = mul_wide(set(0xD2511F53u), c.word[0]);
    const WideProduct p1 = mul_wide(set(0xCD9E8D57u), c.word[2]);
    c = {{p1.high ^ c.word[1] ^ set(k0), p1.low, p0.high ^ c.word[3] ^ set(k1), p0.low}};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

// The keys of the rounds, in memory: a vector operation reads and spreads one on its way, where a
// number that is counted up goes through the port that the shuffles need.
constexpr int kPhiloxRounds = 10;
struct PhiloxKeys {
  std::uint32_t first[kPhiloxRounds], second[kPhiloxRounds];
};
QKV_INLINE PhiloxKeys philox_keys(std::uint64_t key) {
  PhiloxKeys keys;
  std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  for (int i = 0; i < kPhiloxRounds; ++i, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
    keys.first[i] = k0;
    keys.second[i] = k1;
  }
  return keys;
}

// What a row's dropout numbers are a function of, besides the channel (see RandomKey).
struct DropoutDraw {
  const PhiloxKeys& keys;
  std::uint32_t token, sample, step, threshold;
};

// Which of the 4 kLanes channels from 8 * block on are kept, for each of kDraws such groups in a
// row: bit i is channel 8 block + i. An element is dropped when its 16-bit number is below the
// threshold. Draws go through the rounds side by side, for each round waits for the one before.
#if defined(QKV_ISA_generic)
template <int kDraws>
QKV_INLINE void dropout_keep(const DropoutDraw& p, std::uint32_t block, std::uint64_t* kept) {
  const std::uint64_t key = std::uint64_t{p.keys.second[0]} << 32 | p.keys.first[0];
  for (int d = 0; d < kDraws; ++d, block += kLanes / 2) {
    const PhiloxVectors r =
        philox(key, {{set(block) + lane_index(), set(p.token), set(p.sample), set(p.step)}});
    kept[d] = 0;
    for (int i = 0; i < 4 * kLanes; ++i) {
      const std::uint32_t number = (r.word[i % 8 / 2].v[i / 8] >> (i % 2 * 16)) & 0xFFFFu;
      kept[d] |= static_cast<std::uint64_t>(number >= p.threshold) << i;
    }
  }
}
#else
// One block per even lane: a product then needs no sorting of its halves, and the two keep bits of
// word w of block j go to the bits 8 j + 2 w.
template <int kDraws>
QKV_INLINE void dropout_keep(const DropoutDraw& p, std::uint32_t block, std::uint64_t* kept) {
  PhiloxVectors c[kDraws];
  for (int d = 0; d < kDraws; ++d, block += kLanes / 2)
    c[d] = {{set(block) + shift_right<1>(lane_index()), set(p.token), set(p.sample), set(p.step)}};
#pragma GCC unroll 10
  for (int i = 0; i < kPhiloxRounds; ++i) {
    U32 p0[kDraws], p1[kDraws];
    for (int d = 0; d < kDraws; ++d) {
      p0[d] = mul_even(set(0xD2511F53u), c[d].word[0]);
      p1[d] = mul_even(set(0xCD9E8D57u), c[d].word[2]);
    }
    for (int d = 0; d < kDraws; ++d)
      c[d] = {{odd_to_even(p1[d]) ^ c[d].word[1] ^ set(p.keys.first[i]), p1[d],
               odd_to_even(p0[d]) ^ c[d].word[3] ^ set(p.keys.second[i]), p0[d]}};
  }
  for (int d = 0; d < kDraws; ++d) {
    kept[d] = 0;
    for (int w = 0; w < 4; ++w) {
      const std::uint64_t pairs =
          _pdep_u64(at_least_16(c[d].word[w], p.threshold), 0x0F0F0F0F0F0F0F0Fu);
      kept[d] |= (pairs & 0x0303030303030303u) << (2 * w);
    }
  }
}
#endif

}  // namespace qkv::inline v0::kernels::QKV_ISA
