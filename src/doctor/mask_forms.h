// What a masked row of weights tells of the rule that made it.
#pragma once

#include <optional>
#include <string>

#include "doctor/session.h"

namespace qkv::inline v0::doctor {

struct MaskForm {
  const char* id = "padding-leak";  // the rule that it breaks
  std::string words;                // "as if ..."; empty: nothing fits
  std::optional<double> stand_in;   // the score, or the offset, that hidden keys got
};

// The form that reproduces the weights, which differ from the expected ones.
MaskForm explain_weights(Session& session, const Setup& setup, const Array& weights);

// Largest share of a row on hidden keys, and least share on visible ones.
Evidence leak_figures(const Session& session, const Setup& setup, const Array& weights);

}  // namespace qkv::inline v0::doctor
