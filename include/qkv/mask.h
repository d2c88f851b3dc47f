// Typed attention masks. No function of this library takes a bare boolean array: the two
// conventions in use (true = may attend, true = blocked) cannot be mixed up, since each has its own
// constructor.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "qkv/tensor.h"

namespace qkv::inline v0 {

// The slopes of the ALiBi paper: 2^(-8 h / H) for h = 1 .. H where H is a power of 2; else those of
// the next lower power of 2, and every other one of the next higher. H >= 1.
QKV_API std::vector<double> alibi_slopes(std::int64_t heads);

// A value type; immutable; sharing between threads is safe.
//
// Combining with & intersects visibility and adds additive biases; an additive -inf blocks. What is
// blocked has exactly no influence: its keys and values are never read into a product. A query with
// no visible key gives zeros.
class QKV_API Mask {
 public:
  Mask() = default;  // everything is visible

  // Boolean (or uint8/int64: nonzero = true) arrays [N,S], [B,1,1,S], [B,1,N,S] or [B,H,N,S];
  // extents 1 broadcast.
  static Mask keep(const Tensor& keep);    // nonzero: the query may attend to the key
  static Mask block(const Tensor& block);  // nonzero: it may not
  static Mask additive(
      const Tensor& bias);  // fp32 or fp64, same shapes: added to the scaled scores; -inf blocks
  static Mask causal();     // query i sees keys j <= i + S - N (anchored at the last key)
  static Mask window(std::int64_t n);  // |i + S - N - j| < n; n >= 1
  static Mask window(std::int64_t left,
                     std::int64_t right);  // -left <= j - (i + S - N) <= right; -1: unlimited
  // The window, but some tokens are exempt: global ones are visible to every query of their
  // sequence, and see every key. `tokens`: positions >= 0 in a sequence's keys, in any order; those
  // behind its end are ignored. The query i is the token i + S - N.
  static Mask window_with_globals(std::int64_t left, std::int64_t right,
                                  std::vector<std::int64_t> tokens);
  static Mask lengths(std::vector<std::int64_t> lengths);  // keys j >= lengths[b] are hidden
  // ALiBi (Press et al. 2022): adds -slopes[h] |i + S - N - j|; one slope per query head.
  static Mask alibi(std::vector<double> slopes);

  friend QKV_API Mask operator&(const Mask& a, const Mask& b);

  bool is_trivial() const;  // everything visible, no bias
  bool is_causal() const { return causal_; }
  std::int64_t left() const { return left_; }    // -1: unlimited
  std::int64_t right() const { return right_; }  // -1: unlimited; causal is right() == 0
  const std::vector<std::int64_t>* lengths() const { return lengths_.get(); }
  const std::vector<double>* slopes() const { return slopes_.get(); }
  struct Window {
    std::int64_t left = -1, right = -1;
    std::vector<std::int64_t> globals;  // ascending
  };
  const std::vector<Window>& windows() const { return windows_; }  // those with globals
  struct Array {
    Tensor values;      // as given, rank 4 with broadcast extents 1
    bool keep = false;  // for boolean arrays
    bool additive = false;
  };
  const std::vector<Array>& arrays() const { return arrays_; }

  // ShapeError unless every array broadcasts to [batch, heads, n, s] and lengths fit.
  void check(std::int64_t batch, std::int64_t heads, std::int64_t n, std::int64_t s) const;
  std::string str() const;  // "causal & window(3, 0) & keep[2, 1, 1, 7]"

 private:
  bool causal_ = false;
  std::int64_t left_ = -1, right_ = -1;
  std::shared_ptr<const std::vector<std::int64_t>> lengths_;
  std::shared_ptr<const std::vector<double>> slopes_;
  std::vector<Window> windows_;
  std::vector<Array> arrays_;
};

}  // namespace qkv::inline v0
