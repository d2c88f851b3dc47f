// Linear-time attention: running sums over the tokens. Matrices lie so that every product is a sum
// of scaled rows; backward therefore keeps each sum transposed as well.
#pragma once

#include "kernels/attention_linear.h"
#include "kernels/simd/attention_tile.h"

namespace qkv::inline v0::kernels::QKV_ISA {

// phi(x) = elu(x) + 1 and its slope.
QKV_INLINE F32 phi(F32 x) { return select(x > zero(), x + set(1.0f), exp(x)); }
QKV_INLINE F32 phi_slope(F32 x) { return select(x > zero(), set(1.0f), exp(x)); }

struct LinearBuffers {
  std::int64_t head_width, value_width;  // D and Dv in whole registers
  float *sum, *transposed, *vector;      // [D][value_width], [Dv][head_width], [head_width]
  float *phi, *slope, *head_row;         // [head_width]
  float *value, *result, *value_row;     // [value_width]
  float *inverse, *dden;                 // of every token
};
QKV_INLINE LinearBuffers linear_buffers(const LinearHead& h) {
  LinearBuffers b;
  b.head_width = round_up(h.head_size, kLanes);
  b.value_width = round_up(h.value_size, kLanes);
  b.sum = h.scratch;
  b.transposed = b.sum + b.head_width * b.value_width;
  b.vector = b.transposed + b.head_width * b.value_width;
  b.phi = b.vector + b.head_width;
  b.slope = b.phi + b.head_width;
  b.head_row = b.slope + b.head_width;
  b.value = b.head_row + b.head_width;
  b.result = b.value + b.value_width;
  b.value_row = b.result + b.value_width;
  b.inverse = b.value_row + b.value_width;
  b.dden = b.inverse + round_up(h.tokens, kLanes);
  return b;
}

QKV_INLINE void clear_sums(const LinearBuffers& b) {
  for (std::int64_t i = 0; i < 2 * b.head_width * b.value_width + b.head_width; i += kLanes)
    store(b.sum + i, zero());
}

// phi of a row, 0 behind its end; its slope too if asked.
QKV_INLINE void load_phi(const LinearHead& h, const float* row, float* to, float* slope) {
  for (std::int64_t d = 0; d < h.head_size; d += kLanes) {
    const Mask lanes = first_lanes(h.head_size - d);
    const F32 x = load(row + d, lanes);
    store(to + d, h.features ? x : keep(lanes, phi(x)));
    if (slope) store(slope + d, h.features ? set(1.0f) : phi_slope(x));
  }
}

QKV_INLINE void decay_sums(const LinearHead& h, const LinearBuffers& b, std::int64_t token) {
  if (!h.decay || token >= h.tokens || h.decay[token] == 1) return;
  const F32 factor = set(h.decay[token]);
  for (std::int64_t i = 0; i < 2 * b.head_width * b.value_width + b.head_width; i += kLanes)
    store(b.sum + i, load(b.sum + i) * factor);
}

QKV_INLINE void load_row(const float* row, std::int64_t depth, float scale, float* to) {
  for (std::int64_t d = 0; d < depth; d += kLanes)
    store(to + d, load(row + d, first_lanes(depth - d)) * set(scale));
}

// matrix[r] += a[r] * b for r < rows.
QKV_INLINE void add_outer(float* matrix, const float* a, std::int64_t rows, const float* b,
                          std::int64_t width) {
  for (std::int64_t c = 0; c < width; c += kLanes) {
    const F32 right = load(b + c);
    for (std::int64_t r = 0; r < rows; ++r)
      store(matrix + r * width + c, fma(set(a[r]), right, load(matrix + r * width + c)));
  }
}

// y = start * scale + sum_r a[r] matrix[r]; start null: 0.
QKV_INLINE void sum_rows(const float* matrix, const float* a, std::int64_t rows, std::int64_t width,
                         const float* start, float scale, float* y) {
  for (std::int64_t c = 0; c < width; c += kLanes) {
    F32 sum[4] = {start ? load(start + c) * set(scale) : zero(), zero(), zero(), zero()};
    std::int64_t r = 0;
    for (; r + 4 <= rows; r += 4)
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i)
        sum[i] = fma(set(a[r + i]), load(matrix + (r + i) * width + c), sum[i]);
    for (; r < rows; ++r) sum[0] = fma(set(a[r]), load(matrix + r * width + c), sum[0]);
    store(y + c, (sum[0] + sum[1]) + (sum[2] + sum[3]));
  }
}

QKV_INLINE void add_scaled(float* to, const float* from, std::int64_t width, float scale) {
  for (std::int64_t c = 0; c < width; c += kLanes)
    store(to + c, fma(load(from + c), set(scale), load(to + c)));
}

QKV_INLINE float dot_rows(const float* a, const float* b, std::int64_t width) {
  F32 total = zero();
  for (std::int64_t c = 0; c < width; c += kLanes) total = fma(load(a + c), load(b + c), total);
  return sum(total);
}

// to = factor * from, or added.
QKV_INLINE void write_row(float* to, const float* from, const float* factor, std::int64_t depth,
                          bool add) {
  for (std::int64_t d = 0; d < depth; d += kLanes) {
    const Mask lanes = first_lanes(depth - d);
    F32 x = load(from + d);
    if (factor) x = x * load(factor + d);
    store(to + d, add ? load(to + d, lanes) + x : x, lanes);
  }
}

// Adds key j: sum += phi(k) v^T, vector += phi(k).
QKV_INLINE void add_key(const LinearHead& h, const LinearBuffers& b, std::int64_t j,
                        bool transposed) {
  load_phi(h, h.k.data + j * h.k.stride, b.phi, nullptr);
  load_row(h.v.data + j * h.v.stride, h.value_size, 1, b.value);
  add_outer(b.sum, b.phi, h.head_size, b.value, b.value_width);
  if (transposed) add_outer(b.transposed, b.value, h.value_size, b.phi, b.head_width);
  add_scaled(b.vector, b.phi, b.head_width, 1);
}

// result = numerator of query i, b.phi = phi(q_i), b.slope; returns 1 / denominator, 0 for none.
QKV_INLINE float read_query(const LinearHead& h, const LinearBuffers& b, std::int64_t i) {
  load_phi(h, h.q.data + i * h.q.stride, b.phi, b.slope);
  sum_rows(b.sum, b.phi, h.head_size, b.value_width, nullptr, 0, b.result);
  const float denominator = dot_rows(b.phi, b.vector, b.head_width);
  return denominator <= h.least ? 0 : 1 / denominator;
}

[[gnu::noinline]] static void linear_forward(const LinearHead& h) {
  const LinearBuffers b = linear_buffers(h);
  clear_sums(b);
  if (!h.causal)
    for (std::int64_t j = 0; j < h.tokens; ++j) add_key(h, b, j, false);
  for (std::int64_t i = 0; i < h.tokens; ++i) {
    if (h.causal) {
      decay_sums(h, b, i);
      add_key(h, b, i, false);
    }
    const float inverse = read_query(h, b, i);
    for (std::int64_t d = 0; d < h.value_size; d += kLanes)
      store(h.out.data + i * h.out.stride + d, load(b.result + d) * set(inverse),
            first_lanes(h.value_size - d));
  }
}

// First half of backward, tokens in order: dq, and 1 / den and dden = -(dout . out) / den of every
// token. dphi(q_i) = sum dnum_i + vector dden_i with dnum_i = dout_i / den_i.
QKV_INLINE void backward_queries(const LinearHead& h, const LinearBuffers& b) {
  clear_sums(b);
  if (!h.causal)
    for (std::int64_t j = 0; j < h.tokens; ++j) add_key(h, b, j, true);
  for (std::int64_t i = 0; i < h.tokens; ++i) {
    if (h.causal) {
      decay_sums(h, b, i);
      add_key(h, b, i, true);
    }
    const float inverse = read_query(h, b, i);
    load_row(h.dout.data + i * h.dout.stride, h.value_size, inverse, b.value_row);
    b.inverse[i] = inverse;
    b.dden[i] = -dot_rows(b.value_row, b.result, b.value_width) * inverse;
    sum_rows(b.transposed, b.value_row, h.value_size, b.head_width, b.vector, b.dden[i],
             b.head_row);
    write_row(h.dq.data + i * h.dq.stride, b.head_row, b.slope, h.head_size, false);
  }
}

// Adds query i to the backward sums: sum += phi(q) dnum^T, vector += phi(q) dden.
QKV_INLINE void add_query(const LinearHead& h, const LinearBuffers& b, std::int64_t i) {
  load_phi(h, h.q.data + i * h.q.stride, b.phi, nullptr);
  load_row(h.dout.data + i * h.dout.stride, h.value_size, b.inverse[i], b.value);
  add_outer(b.sum, b.phi, h.head_size, b.value, b.value_width);
  add_outer(b.transposed, b.value, h.value_size, b.phi, b.head_width);
  add_scaled(b.vector, b.phi, b.head_width, b.dden[i]);
}

// Second half, tokens in reverse: dk and dv.
QKV_INLINE void backward_tokens(const LinearHead& h, const LinearBuffers& b) {
  clear_sums(b);
  if (!h.causal)
    for (std::int64_t i = 0; i < h.tokens; ++i) add_query(h, b, i);
  for (std::int64_t j = h.tokens - 1; j >= 0; --j) {
    if (h.causal) {
      decay_sums(h, b, j + 1);
      add_query(h, b, j);
    }
    load_phi(h, h.k.data + j * h.k.stride, b.phi, b.slope);
    load_row(h.v.data + j * h.v.stride, h.value_size, 1, b.value_row);
    sum_rows(b.transposed, b.value_row, h.value_size, b.head_width, b.vector, 1, b.head_row);
    write_row(h.dk.data + j * h.dk.stride, b.head_row, b.slope, h.head_size, h.add_to_kv);
    sum_rows(b.sum, b.phi, h.head_size, b.value_width, nullptr, 0, b.result);
    write_row(h.dv.data + j * h.dv.stride, b.result, nullptr, h.value_size, h.add_to_kv);
  }
}

[[gnu::noinline]] static void linear_backward(const LinearHead& h) {
  const LinearBuffers b = linear_buffers(h);
  backward_queries(h, b);
  backward_tokens(h, b);
}

}  // namespace qkv::inline v0::kernels::QKV_ISA
