// The order of an examination: what everything else rests on comes first.
#include <cmath>
#include <string>

#include <fmt/format.h>

#include "base/check.h"
#include "doctor/session.h"

namespace qkv::inline v0::doctor {
namespace {

constexpr const char* kAfterRepeat[] = {
    "rows-sum",       "batch-mates",  "normalised-qk", "scale",         "dtype-drift",
    "views",          "mask-ignored", "mask-polarity", "mask-value",    "padding-leak",
    "padding-amount", "empty-row",    "future-leak",   "causal-corner", "mask-combination",
    "cache",          "gradient",     "head-groups",   "window-edge"};

void probe_masks(Session& session) {
  if (session.f.mask == MaskStyle::kNone) {
    for (const char* id : {"mask-ignored", "mask-polarity", "mask-value", "padding-leak",
                           "padding-amount", "empty-row"})
      session.record.skip(id, "the function takes no mask, or its convention is not stated");
    return;
  }
  probe_mask(session);
  probe_mask_bias(session);
  probe_mask_stand_in(session);
  probe_padding(session);
  probe_empty_row(session);
}

void examine(Session& session) {
  probe_answer(session);
  probe_repeat(session);
  probe_rows(session);
  probe_batch(session);
  if (session.formula_known) probe_formula(session);
  probe_large_scores(session);
  if (session.formula_known) {
    probe_lengths(session);
    probe_returned_weights(session);
    probe_long_positions(session);
    probe_float64(session);
    probe_cache(session);
  }
  probe_views(session);
  if (!session.formula_known) {
    for (const char* id :
         {"mask-ignored", "mask-polarity", "mask-value", "padding-leak", "empty-row", "future-leak",
          "causal-corner", "mask-combination", "window-edge", "head-groups"})
      session.record.undecided(id, "without a mask it is already wrong: mend " +
                                       session.record.first_error() + " first");
    return;
  }
  probe_masks(session);
  probe_causal(session);
  probe_combination(session);
  probe_window(session);
  probe_heads(session);
  probe_gradient(session);
  probe_memory(session);
}

}  // namespace

Report check_attention(const AttentionUnderTest& attention) {
  require<ArgumentError>(attention.forward != nullptr, "doctor", "expected a function, got none");
  require<ArgumentError>(attention.time_limit > 0, "doctor",
                         "expected a time limit above 0, got {}", attention.time_limit);
  require<ArgumentError>(attention.head_size.value_or(1) >= 1, "doctor",
                         "expected head_size of at least 1, got {}",
                         attention.head_size.value_or(1));
  require<ArgumentError>(attention.kv_heads.value_or(1) >= 1, "doctor",
                         "expected kv_heads of at least 1, got {}", attention.kv_heads.value_or(1));
  require<ArgumentError>(attention.window.value_or(1) >= 1, "doctor",
                         "expected a window of at least 1, got {}", attention.window.value_or(1));
  const double rope_base = attention.rope ? attention.rope->base : 10000;
  require<ArgumentError>(rope_base > 1 && std::isfinite(rope_base), "doctor",
                         "expected a rope base above 1, got {}", rope_base);
  Recorder record;
  Session session(attention, record);
  session.causal_always = attention.always_causal;
  if (attention.rope) session.rotary = Rotary{attention.rope->interleaved, attention.rope->base};
  try {
    examine(session);
  } catch (const Stop&) {
    for (const char* id : kAfterRepeat)
      record.undecided(id, "ended early: mend " + record.first_error() + " first");
  } catch (const TimeUp&) {
    const std::string reason =
        fmt::format("not reached: the calls before took {:.0f} s", session.seconds_spent);
    for (const char* id : kAfterRepeat)
      if (!record.has(id)) record.undecided(id, reason);
  }
  return record.take();
}

}  // namespace qkv::inline v0::doctor
