// Rotary positions (Su et al. 2021) in double precision, as a function under test may apply them.
#pragma once

#include "doctor/formula.h"

namespace qkv::inline v0::doctor {

struct Rotary {
  bool interleaved = false;  // pairs (2c, 2c + 1); else (c, c + D / 2)
  double base = 10000;
  double share = 1;            // of the channels, the first ones
  int q_sign = 1, k_sign = 1;  // of the angles; 0: not rotated
  std::int64_t q_shift = 0;    // of the positions of queries against those of keys
};

// Row i of every head turned by the angles of position first + i, times `sign`.
Array rotated(const Array& x, std::int64_t first, const Rotary& rotary, int sign);

}  // namespace qkv::inline v0::doctor
