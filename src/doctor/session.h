// One examination of an attention function: how it is called, and what is known of it so far.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "qkv/doctor.h"

#include "doctor/formula.h"
#include "doctor/recorder.h"
#include "doctor/rotary.h"

namespace qkv::inline v0::doctor {

// What a call is made of, before types and memory.
struct Setup {
  Array q, k, v;                   // [B, H, N, D], [B, Hkv, S, D] twice
  std::vector<std::uint8_t> keep;  // [B, N, S], nonzero: visible; empty: no mask is passed
  std::vector<double> bias;        // [B, N, S], for additive masks; empty: none
  bool causal = false;             // passed as is_causal
  std::optional<std::int64_t> window;

  std::int64_t batch() const { return q.b; }
  std::int64_t queries() const { return q.n; }
  std::int64_t keys() const { return k.n; }
  bool kept(std::int64_t b, std::int64_t i, std::int64_t j) const {
    return keep.empty() || keep[static_cast<std::size_t>((b * q.n + i) * k.n + j)] != 0;
  }
  double biased(std::int64_t b, std::int64_t i, std::int64_t j) const {
    return bias.empty() ? 0 : bias[static_cast<std::size_t>((b * q.n + i) * k.n + j)];
  }
};

// How the tensors of a call lie in memory.
enum class Memory { kPacked, kTokensFirst, kWideRows };

struct Trial {
  std::string error;  // empty: the call came back with a tensor of the right shape
  Array out;
  std::optional<Array> weights;  // as returned
  std::string library;
  explicit operator bool() const { return error.empty(); }
};

struct Stop {};    // thrown to end an examination: a finding says why
struct TimeUp {};  // thrown when the calls of an examination took too long together

class Session {
 public:
  Session(const AttentionUnderTest& attention, Recorder& recorder)
      : f(attention), record(recorder) {}

  // A call; a failure stands in the result. Ends the examination when the time limit is passed.
  Trial call(const Setup& setup, DType dtype = DType::kFloat32, Memory memory = Memory::kPacked);
  AttentionCall make_call(const Setup& setup, DType dtype, Memory memory = Memory::kPacked) const;

  // The weights that the function used, read off by one-hot values: [B, H, N, S]. The first failed
  // call stands in the result.
  Trial read_weights(const Setup& setup);

  Setup plain(std::int64_t n, std::int64_t s, std::int64_t d, std::uint64_t seed) const;
  std::int64_t heads() const { return f.kv_heads.value_or(3); }
  std::int64_t head_size() const { return f.head_size.value_or(16); }
  double stated_scale(std::int64_t d) const;

  // Whether the definition lets query i of b see key j, and that definition's weights and output.
  bool visible(const Setup& setup, const Place& place) const;
  Array expected_weights(const Setup& setup) const;
  Array expected(const Setup& setup) const;
  Array weights_with(const Setup& setup, const Edit& edit) const;
  // q k^T with what the function does to q and k by itself; query head h reads key head map(h).
  Array dots(const Setup& setup, const std::function<std::int64_t(std::int64_t)>& map) const;
  Array dots(const Setup& setup) const;
  // A channel that positions leave as it is over a few tokens.
  std::int64_t quiet_channel() const;

  const AttentionUnderTest& f;
  Recorder& record;
  double seconds_spent = 0;  // in calls
  double scale_factor = 1;   // what the function uses, times the stated scale: found by the probes
  bool causal_always = false;  // stated or found
  double tolerance = 1e-4;     // of values, relative to the largest
  double weight_tolerance = 1e-3;
  bool formula_known = true;  // the plain function is understood: masks can be judged
  bool wrote_inputs = false;
  std::optional<Rotary> rotary;    // what q and k are rotated by: stated or found
  std::vector<double> slopes;      // of a bias by distance that the function adds: found
  bool queries_from_zero = false;  // positions of fewer queries than keys: found
  std::string last_library;
  std::optional<Trial> unmasked;  // weights without mask of the mask probes' setup
};

// Query head h of `heads` reads this key/value head of `kv_heads`.
inline std::int64_t group_of(std::int64_t h, std::int64_t heads, std::int64_t kv_heads) {
  return h * kv_heads / heads;
}

// Positions that the function brings by itself; true if they explain the weights.
bool name_own_positions(Session& session, const Setup& setup, const Array& weights,
                        const std::string& where);

// The probes, in the order of an examination. Each adds what it finds.
void probe_answer(Session& session);   // exception, shape, non-finite; may throw Stop
void probe_repeat(Session& session);   // dropout-alive, nondeterminism; may throw Stop
void probe_rows(Session& session);     // rows-sum
void probe_batch(Session& session);    // batch-mates
void probe_formula(Session& session);  // normalised-qk, scale, saturated, dtype-drift, reference
void probe_large_scores(Session& session);  // non-finite
void probe_lengths(Session& session);       // rows-sum, reference
void probe_returned_weights(Session& session);
void probe_long_positions(Session& session);  // position-shift
void probe_float64(Session& session);         // dtype-drift
void probe_views(Session& session);           // views
void probe_mask(Session& session);       // mask-ignored, -polarity, -value, rows-sum, batch-mates
void probe_mask_bias(Session& session);  // finite biases of additive masks
void probe_mask_stand_in(Session& session);  // mask-value
void probe_padding(Session& session);        // padding-leak, padding-amount
void probe_empty_row(Session& session);      // empty-row
void probe_causal(Session& session);         // future-leak, causal-corner
void probe_combination(Session& session);    // mask-combination
void probe_window(Session& session);         // window-edge
void probe_heads(Session& session);          // head-groups
void probe_cache(Session& session);          // cache
void probe_gradient(Session& session);       // gradient, gradient-missing
void probe_memory(Session& session);         // quadratic-memory

}  // namespace qkv::inline v0::doctor
