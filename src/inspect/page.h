// The attention maps of a text as one HTML page that needs nothing else: no network, no other file.
#pragma once

#include <string>

#include "inspect/trace.h"

namespace qkv::inline v0::inspect {

// All heads as small pictures, one of them large with the tokens on both axes, what one token looks
// at as coloured text, and the head's figures. Up to kDenseWeights weights in all are kept exactly
// (16 bits each, relative to the head's largest); beyond, the largest of every row are, and the
// pictures show the largest weight of each small square. `model` names it in the title.
// ArgumentError for a trace without attention.
inline constexpr std::int64_t kDenseWeights = 4'000'000;
std::string attention_page(const Trace& trace, const std::string& model);

// JSON text that may stand inside a <script> element: no "<", no line separators that scripts do
// not take.
std::string script_json(const Json& value);

}  // namespace qkv::inline v0::inspect
